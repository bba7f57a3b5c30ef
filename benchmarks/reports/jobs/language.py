"""Made-up language and tiny language models: nothing is downloaded."""

import torch
from torch.utils.data import Dataset

PAD, BEGIN, END, ASK, ANSWER = 0, 1, 2, 3, 4
FIRST = 8


class Sentences(Dataset):
    """Token ids of a Markov chain: after each token one of three can follow. Lengths lie in ``lengths``."""

    def __init__(self, n=512, lengths=(16, 16), vocab=64, seed=0):
        draw = torch.Generator().manual_seed(11)
        follow = torch.randint(FIRST, vocab, (vocab, 3), generator=draw)
        draw = torch.Generator().manual_seed(seed + 5)
        self.rows = []
        for _ in range(n):
            row = [int(torch.randint(FIRST, vocab, (1,), generator=draw))]
            length = int(torch.randint(lengths[0], lengths[1] + 1, (1,), generator=draw))
            pick = torch.randint(0, 3, (length,), generator=draw).tolist()
            for k in pick[1:]:
                row.append(int(follow[row[-1], k]))
            self.rows.append(torch.tensor(row))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def dialogues(n=512, vocab=64, question=6, answer=(3, 9), seed=0):
    """Pairs of a question and its answer, which is the question's beginning, shifted by one token each."""
    draw = torch.Generator().manual_seed(seed + 23)
    pairs = []
    for _ in range(n):
        ask = torch.randint(FIRST, vocab - 1, (question,), generator=draw)
        length = int(torch.randint(answer[0], answer[1] + 1, (1,), generator=draw))
        pairs.append((ask.tolist(), [int(ask[k % question]) + 1 for k in range(length)]))
    return pairs


def llama(vocab=64, hidden=32, layers=2, tied=False, **settings):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
            **settings,
        )
    )


def gpt2(vocab=64, hidden=32, layers=2, dropout=0.0):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab,
            n_embd=hidden,
            n_layer=layers,
            n_head=4,
            n_positions=64,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=BEGIN,
            eos_token_id=END,
        )
    )
