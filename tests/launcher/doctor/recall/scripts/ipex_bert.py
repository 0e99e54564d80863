# SPDX-License-Identifier: Apache-2.0
"""Question answering with BERT on a CPU, as the tutorials of 2022 did."""

import argparse

import intel_extension_for_pytorch as ipex  # expect: XL050
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from squad import features, load_squad


def build(name, bf16):
    model = AutoModelForQuestionAnswering.from_pretrained(name)
    model.eval()
    dtype = torch.bfloat16 if bf16 else torch.float32
    return ipex.optimize(model, dtype=dtype)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="bert-large-uncased-whole-word-masking-finetuned-squad")
    p.add_argument("--seq", default=384, type=int)
    p.add_argument("--bf16", type=bool, default=False)  # expect: XL001
    p.add_argument("--workers", choices=[0, 1, 2, 4], default=0, type=int)
    p.add_argument("--limit", default=None)
    args = p.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = build(args.model, args.bf16)
    loader = DataLoader(
        features(load_squad("dev"), tokenizer, args.seq), batch_size=8, num_workers=args.workers
    )
    answers = []
    for number, batch in enumerate(loader):
        if args.limit is not None and number >= int(args.limit):
            break
        with torch.no_grad(), torch.cpu.amp.autocast(enabled=args.bf16):  # expect: XL051
            out = model(batch["input_ids"], attention_mask=batch["attention_mask"])
        first = out.start_logits.argmax(-1)
        last = out.end_logits.argmax(-1)
        answers += list(zip(batch["id"], first.tolist(), last.tolist()))
    print(f"{len(answers)} answers")


if __name__ == "__main__":
    main()
