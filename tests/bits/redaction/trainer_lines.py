"""Command lines by which people start trainers, servers and evaluations, as their READMEs and scripts spell them.

None holds a secret, and many hold a word that could be taken for one: a key of data, a budget of tokens, a commit. They
are shortened; variables that a shell would have replaced are replaced.
"""

COMMIT = "7ae557604adf67be50417f59c2c2f167def9a775"
LINES = {
    "verl, GRPO": (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=\"['data/train.parquet']\""
        " data.prompt_key=prompt data.reward_fn_key=data_source data.max_response_length=20480 data.truncation=error"
        " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=21504"
        " actor_rollout_ref.rollout.max_num_batched_tokens=8192 algorithm.kl_ctrl.kl_coef=0.0"
        " trainer.logger=['console','wandb'] "
        " +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True"
    ),
    "verl, images": (
        "python3 -m verl.trainer.main_ppo data.image_key=images data.answer_key=answer data.video_key=videos"
        " data.val_files=/app/viki/test.parquet data.custom_cls.name=ResOPDDataset actor_rollout_ref.rollout.n=5"
        " custom_reward_function.path=rewards/geo3k.py custom_reward_function.name=compute_score"
    ),
    "verl, Megatron": (
        "python3 -m verl.trainer.main_ppo --config-path=config --config-name=ppo_megatron_trainer.yaml"
        " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 data.tokenizer=null data.train_batch_size=1024"
        " actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=25000 trainer.default_local_dir=ckpts/qwen/run-1"
    ),
    "verl, agents": (
        "python3 -m verl.trainer.main_ppo --config-path examples/vlnce --config-name train_vlnce_4gpus.yaml"
        " actor_rollout_ref.rollout.agent.base_url=http://127.0.0.1:5001 trainer.experiment_name=r2r"
        " actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode=strict"
        " data.tools_key=tools data.enable_thinking_key=enable_thinking data.messages_key=messages"
    ),
    "OpenRLHF, Ray": (
        'ray job submit --address=http://127.0.0.1:8265 --runtime-env-json=\'{"working_dir": "/openrlhf", '
        '"excludes": ["saves", "logs"], "env_vars": {"VLLM_USE_V1": "1", "TOKENIZERS_PARALLELISM": "false"}}\''
        " -- python3 -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 --pretrain OpenRLHF/Llama-3-8b-sft-mixture"
        " --prompt_data OpenRLHF/prompt-collection-v0.1 --input_key context_messages --label_key answer"
        " --apply_chat_template --generate_max_len 1024 --init_kl_coef 1e-3 --advantage_estimator reinforce_baseline"
    ),
    "OpenRLHF, a reward model": (
        "python -m openrlhf.cli.serve_rm --policy_pretrain Qwen/Qwen2.5-7B --port 5000 --max_len 8192 --rule test_case"
        " --dataset data/code.jsonl --input_key context_messages --gt_key tests --value_head_prefix score"
    ),
    "OpenRLHF, preferences": (
        "deepspeed --module openrlhf.cli.train_rm --save_path ./checkpoint/llama3-8b-rm --chosen_key chosen"
        " --rejected_key rejected --prompt_key prompt --output_key response --packing_samples --pad_token_id 128001"
    ),
    "slime": (
        "python3 train.py --hf-checkpoint /data/Qwen3-4B --prompt-data /data/dapo-math-17k.jsonl --input-key prompt"
        " --label-key label --metadata-key metadata --tool-key tools --apply-chat-template --rm-type deepscaler"
        " --apply-chat-template-kwargs '{\"enable_thinking\":false}' --eval-prompt-data aime /data/aime-2024.jsonl"
        " --max-tokens-per-gpu 9216 --calculate-per-token-loss --advantage-estimator grpo --eps-clip-high 0.28"
        " --loss-mask-type qwen3_5 --log-probs-chunk-size 1024 --use-wandb --wandb-project slime --wandb-group qwen3-4B"
    ),
    "miles": (
        "python train.py --advantage-estimator grpo --custom-rm-path miles.rollout.on_policy_distillation.reward_func"
        " --rm-url http://10.0.0.7:13141/generate --opd-log-prob-top-k 2 --sglang-mem-fraction-static 0.7"
        " --rollout-stop-token-ids 151645 151643 --data-source-path nla.data_source.NLADataSource"
    ),
    "open-instruct": (
        "python open_instruct/grpo_fast.py --dataset_mixer_list allenai/Dolci-Think-RL-7B 1.0 --pack_length 5120"
        " --ground_truths_key ground_truth --sft_messages_key messages --chat_template_name olmo_thinker --add_bos"
        " --max_prompt_token_length 1024 --max_token_length 10240 --stop_strings '</answer>' --non_stop_penalty False"
        " --llm_judge_max_tokens 2048 --code_pass_rate_reward_threshold 0.99 --hf_entity allenai --wandb_entity ai2-llm"
        " --oe_eval_tasks minerva_math::hamish_zs_reasoning,bbh:cot::hamish_zs_reasoning,gsm8k::zs_cot_latex"
    ),
    "NeMo RL": (
        "uv run examples/run_grpo_math.py --config examples/configs/grpo_math_1B.yaml grpo.max_num_steps=3"
        " policy.tokenizer.name=Qwen/Qwen3-8B policy.max_total_sequence_length=4096 logger.wandb.project=nemo-rl"
        " logger.wandb.name=qwen3-2n8g policy.generation.stop_token_ids=[151645] ++checkpointing.enabled=true"
        " policy.dynamic_batching.train_mb_tokens=4096 data.prompt_file=examples/prompts/cot.txt"
    ),
    "SkyRL": (
        "uv run --isolated --extra vllm -m skyrl_train.entrypoints.main_base data.train_data=\"['train.parquet']\""
        " trainer.algorithm.advantage_estimator=grpo generator.enable_thinking_tokens=true trainer.resume_mode=null"
        " generator.custom_chat_template_key=custom_thinking_remover environment.env_class=gsm8k"
        " generator.sampling_params.max_generate_length=1024 trainer.algorithm.loss_reduction=token_mean"
    ),
    "prime-rl": (
        "uv run rl @ examples/reverse_text/rl.toml --orchestrator.strict-async-level --max-async-level 8"
        " --output-dir outputs/qwen3-0p6b-smoke --client.base-url http://localhost:8000/v1"
        " --trainer.loss.token-mask-high 8.0 --orchestrator.sampling.max-tokens 2048"
    ),
    "torchtitan": (
        "torchrun --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint=localhost:29500 --local-ranks-filter 0"
        " --role rank --tee 3 -m torchtitan.train --job.config_file llama3_8b.toml --training.seed 42"
        " --training.deterministic --model.tokenizer_path assets/tokenizer/tokenizer.model --metrics.enable_wandb"
    ),
    "TRL": (
        "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/tldr --max_completion_length 32"
        " --num_generations 4 --use_vllm --vllm_mode colocate --report_to none --push_to_hub false"
        " --hub_model_id me/qwen-grpo --model_revision main --eos_token '<|im_end|>' --mask_truncated_completions"
    ),
    "TRL, a server": (
        "python -m trl.scripts.vllm_serve --model Qwen/Qwen2.5-14B-Instruct --enable_prefix_caching=true --port 8003"
    ),
    "accelerate": (
        "accelerate launch --config_file recipes/zero3.yaml --num_processes 2 --main_process_port 29501"
        " src/open_r1/grpo.py --config recipes/grpo.yaml --learning_rate 5e-6 --report_to_wandb --wandb_entity=ntu-slab"
        f" --model_revision {COMMIT} --dataset_text_field text --reward_funcs accuracy format tag_count"
    ),
    "accelerate, images": (
        "accelerate launch train_dreambooth_lora.py --image_column=target_image --caption_column=instruction"
        " --instance_prompt='a photo of sks dog' --placeholder_token '<cat-toy>' --initializer_token toy"
        " --num_vectors 5 --train_batch_size=1 --validation_prompt 'A <cat-toy> backpack' --seed 1337"
    ),
    "trlX": (
        "accelerate launch --config_file accelerate.yaml PPO_training/PPO_training.py --train.seq_length 512"
        " --model.model_path gpt2-medium --tokenizer.tokenizer_path gpt2-medium --method.gen_kwargs.max_new_tokens 40"
    ),
    "Hugging Face's trainer": (
        "deepspeed --num_gpus=4 --master_port=29500 train_mem.py --deepspeed scripts/zero2.json --version plain"
        " --model_name_or_path lmsys/vicuna-7b-v1.5 --mm_projector_type mlp2x_gelu --mm_use_im_start_end False"
        " --mm_use_im_patch_token False --group_by_modality_length True --model_max_length 2048 --use_auth_token True"
    ),
    "ms-swift": (
        "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-VL-32B-Instruct --external_plugins plugin.py"
        " --reward_funcs external_accuracy format --reward_weights 1.0 0.1 --vllm_max_model_len 8192 --sleep_level 1"
        " --system 'You are a helpful assistant.' --use_hf true --hub_model_id me/model --stop_words '</s>'"
    ),
    "LLaMA-Factory": (
        "llamafactory-cli train examples/train_lora/llama3_lora_sft.yaml template=llama3 cutoff_len=2048"
        " resize_vocab=true new_special_tokens='<a>,<b>' skip_special_tokens=true tokenized_path=saves/tokens"
    ),
    "Megatron": (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 48 --kv-channels 128 --num-query-groups 4"
        " --tokenizer-type HuggingFaceTokenizer --tokenizer-model ./tokenizer --vocab-file vocab.json --merge-file"
        " merges.txt --split 949,50,1 --train-samples 300000 --lr 6.0e-5 --moe-token-dispatcher-type alltoall"
        " --moe-pad-expert-input-to-capacity --moe-z-loss-coeff 1e-3 --reset-attention-mask --eod-mask-loss"
        " --wandb-project PhiMoE --wandb-exp-name Phi-mini-MoE --moe-token-drop-policy probs"
    ),
    "Megatron under MPI": (
        "mpirun -np 64 -npernode 8 --hostfile hostfile_1234 -x MASTER_ADDR=10.0.0.1 -x NCCL_IB_HCA=mlx5_4,mlx5_7"
        " -x TORCH_NCCL_AVOID_RECORD_STREAMS=1 python pretrain_gpt.py --data-impl mmap --vocab-size 50304"
    ),
    "Slurm": (
        "srun --container-image=nvcr.io/nvidia/nemo:24.07 --container-mounts=/lustre:/lustre --ntasks-per-node=8"
        " --mpi=pmix --export=ALL,NCCL_DEBUG=WARN --key-shutdown-timeout 5 bash -c 'cd /ws && python -u train.py"
        " trainer.devices=8 model.tokenizer.type=Qwen/Qwen2-7B model.data.data_prefix=[0.5,a_text_document]'"
    ),
    "fairseq": (
        "fairseq-train data-bin/iwslt14.tokenized.de-en --arch transformer_iwslt_de_en --max-tokens 12000"
        " --tokens-per-sample 2048 --adam-betas '(0.9, 0.98)' --eval-bleu-args '{\"beam\": 4, \"max_len_a\": 1.2}'"
        " --eval-bleu-detok moses --keep-last-epochs 5 --sentencepiece-model spm.model --prepend-bos --mask-prob 0.15"
    ),
    "torchtune": (
        "tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora dtype=bf16 device=cuda"
        " tokenizer.path=/tmp/tokenizer.model tokenizer.max_seq_len=2048 dataset.packed=True compile=False"
    ),
    "axolotl": (
        "axolotl train qwen3.yml --special-tokens.pad-token '<pad>' --hub-strategy end --sequence-len 4096"
        " --launcher torchrun -- --nproc_per_node=2 --rdzv_id=101 --max-restarts=3"
    ),
    "Surogate": "surogate sft examples/sft/qwen3/qwen3-lora-bf16.yaml --hub-token-file '' --max-new-tokens 64",
    "torchrun": (
        "torchrun --standalone --nproc_per_node=gpu test_pose.py --model \"AsymmetricMASt3R(pos_embed='RoPE100',"
        " img_size=(512, 512), depth_mode=('exp', -inf, inf), enc_embed_dim=1024)\" --test_dataset"
        " \"Re10K_pose(split='test', ROOT='/nas3/RealEstate10k_v2', resolution=(512,384), seed=772343247)\""
    ),
    "a tokenizer": (
        "uv run cs336_basics/train.py --vocab_path data/vocab.pkl --special_tokens '<|endoftext|>' --eos_token"
        " '<|endoftext|>' --max_seq_len 256 --stop_token_ids 128009 128001 --special_tokens_fix 1 --mask_token_id 103"
    ),
    "vLLM, a server": (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8001 --max-num-batched-tokens 8192"
        " --enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser qwen3 --kv-cache-dtype fp8"
        ' --speculative-config \'{"method":"eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}\''
        ' --kv-transfer-config \'{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"}\''
        f" --tokenizer-revision {COMMIT} --return-tokens-as-token-ids --served-model-name policy"
    ),
    "vLLM, a benchmark": (
        "vllm bench serve --backend openai-chat --base-url http://127.0.0.1:8080 --endpoint /v1/chat/completions"
        " --tokenizer Qwen/Qwen3-30B-A3B-FP8 --dataset-name random --random-input-len 2048 --metric-percentiles 50,99"
    ),
    "vLLM in Docker": (
        "docker run --gpus all -v /data/.cache/huggingface:/data/.cache/huggingface -p 8000:8000 --ipc=host"
        " --user 1000:1000 --shm-size 16g -e HF_HUB_OFFLINE=1 -e NCCL_CUMEM_ENABLE=0"
        f" vllm/vllm-openai@sha256:{COMMIT}{COMMIT[:24]} --model Qwen/Qwen3-8B --max-model-len 32768"
    ),
    "SGLang": (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3.6-27B --tp 1 --tool-call-parser qwen3_coder"
        " --chunked-prefill-size 8192 --mem-fraction-static 0.45 --disable-radix-cache --enable-metrics"
        " --max-total-tokens 131072 --max-prefill-tokens 16384 --skip-tokenizer-init --random-seed 7"
    ),
    "lm-evaluation-harness": (
        "lm_eval --model vllm --model_args pretrained=/models/qwen,tensor_parallel_size=8,add_bos_token=True"
        " --tasks leaderboard_mmlu_pro --gen_kwargs spaces_between_special_tokens=True,max_gen_toks=8192"
        " --apply_chat_template --log_samples --hf_hub_log_args hub_results_org=me,push_results_to_hub=False"
    ),
    "lm-evaluation-harness, a server": (
        "lm_eval --model local-completions --tasks gsm8k --limit 10 --model_args model=qwen3,base_url="
        "http://vllm:8000/v1,tokenized_requests=False,tokenizer=/model,tokenizer_backend=huggingface,max_tokens=256"
    ),
    "MoE on several hosts": (
        "env FI_PROVIDER=efa NCCL_SOCKET_IFNAME=^lo,docker HF_HOME=/cache OMP_NUM_THREADS=1 WANDB_MODE=offline"
        " WANDB_PROJECT=rl WANDB_RUN_GROUP=run-20261123-101112 TOKENIZERS_PARALLELISM=true HF_HUB_ENABLE_HF_TRANSFER=1"
        " python -m torch.distributed.run --rdzv_id=a1b2c3d4 --node_rank=0 --master_addr=2001:db8::1 train.py"
    ),
    "a script with variables": (
        "bash -c 'export WANDB_API_KEY=${WANDB_API_KEY} HF_TOKEN=$HF_TOKEN && huggingface-cli login --token $HF_TOKEN"
        " && python train.py --wandb-key ${WANDB_KEY} --wandb-name qwen-$(date +%F)'"
    ),
    "sweeps": (
        "python train.py --multirun +experiment=pass_at_k optimizer.lr=1e-4,3e-4 'seed=range(0,3)' model=glob(*)"
        " hydra.sweep.dir=multirun/2026-11-23 ~logger.wandb tags=[a,b] eval.pass_at=[1,8] key_order=sorted"
    ),
}
"""Whose line it is, and the line."""
