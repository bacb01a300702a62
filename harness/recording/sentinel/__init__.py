"""The sentinel: replicas that must agree compare digests while they train, and a rank that differs is named.

begin of a step ─▶ digests of weights, gradients, moments ─▶ one small gather ─▶ equal: the step is applied
end of a step   ─▶ digests of weights, moments            ─▶ one small gather ─▶ equal: the program continues
      different ─▶ read again ─▶ repeat the step ─▶ bundle ─▶ every rank ends
"""
