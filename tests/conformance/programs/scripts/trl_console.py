"""The console script `trl sft`, on a model and a file of texts that are made on the spot; planted: another text.

The script is called in this process, as its launcher does without a configuration of accelerate.
"""

import json
import subprocess
import sys
from pathlib import Path

from language_models import TEXTS, make_model, make_tokenizer
from outcome import IS_PLANTED, save
from safetensors.torch import load_file
from transformers import set_seed


def main() -> None:
    """Write the files, call the script, and save the weights that it wrote."""
    set_seed(3)
    make_model().save_pretrained("model")
    make_tokenizer().save_pretrained("model")
    texts = [text.replace("a", "b") if IS_PLANTED and index == 0 else text for index, text in enumerate(TEXTS[:16])]
    Path("texts").mkdir()
    Path("texts", "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    console_script = Path(sys.executable).with_name("trl")
    arguments = "--model_name_or_path model --dataset_name texts --output_dir out --max_steps 4 --report_to none"
    more = "--per_device_train_batch_size 4 --use_cpu True --bf16 False --max_length 32 --seed 3 --save_strategy steps"
    subprocess.run([str(console_script), "sft", *arguments.split(), *more.split(), "--save_steps", "4"], check=True)
    save(load_file("out/checkpoint-4/model.safetensors").values())


if __name__ == "__main__":
    main()
