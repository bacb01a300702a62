"""Logits of transformers with adapters of peft, to compare with: of those it makes itself, or of those it is given.

python hugging_face_adapters.py make DIR      # DIR/llama, ...: checkpoints; DIR/llama/adapter: random adapters, logits
python hugging_face_adapters.py read DIR...   # logits.safetensors into DIR/adapter of each
"""

import sys
from pathlib import Path

import torch
from hugging_face_logits import CONFIGS, write_logits
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

TARGETS = {"llama": ["q_proj", "v_proj"], "qwen2": ["k_proj", "o_proj", "gate_proj"]}
"""Of the others all that a layer has."""
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main() -> None:
    """As the usage says."""
    command, *directories = sys.argv[1:]
    if command == "make":
        for number, name in enumerate(("llama", "qwen2", "qwen3")):
            torch.manual_seed(number)
            directory = Path(directories[0]) / name
            model = AutoModelForCausalLM.from_config(CONFIGS[name])
            model.save_pretrained(directory)
            wanted = LoraConfig(
                r=3 + number, lora_alpha=8, target_modules=TARGETS.get(name, ALL), task_type="CAUSAL_LM"
            )
            adapted = get_peft_model(model, wanted)
            with torch.no_grad():  # terms that are not 0
                for key, parameter in adapted.named_parameters():
                    if "lora_B" in key:
                        parameter.normal_()
            adapted.save_pretrained(directory / "adapter")
            write_logits(adapted.eval(), directory / "adapter")
        return
    for directory in map(Path, directories):
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(directory), directory / "adapter")
        write_logits(model.eval(), directory / "adapter")


if __name__ == "__main__":
    main()
