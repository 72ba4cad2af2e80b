"""Patterns by which byte-pair vocabularies cut text before merges, by `tokenizer.ggml.pre`.

Each name stands for one or several patterns: the first cuts the text, each further one cuts what is
left between the cuts. They are written as the original tokenizers have them. A name that is not
here is refused: a tokenizer that is almost right makes a model that is almost right.
"""

from dataclasses import dataclass

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(ending: str, rest: str, upper: str = UPPER, lower: str = LOWER) -> str:
    """Words that end where a capital follows a small letter."""
    return rf"{BEFORE}{upper}*{lower}+{ending}|{BEFORE}{upper}+{lower}*{ending}|{rest}|{SPACES}"


GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = rf"{CONTRACTION}|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}"
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN_35 = (
    rf"{CONTRACTION}|{BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
GPT_4O = _words(f"{CONTRACTION}?", r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*")
TEKKEN = _words("", r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*")
KIMI = r"\p{Han}+|" + _words(
    f"{CONTRACTION}?",
    rf"\p{{N}}{{1,3}}|{SIGNS}",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
)
BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{BEFORE}\p{{L}}+|\p{{N}}|{SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"
EXAONE_MOE = (
    rf"{CONTRACTION}|{BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
LINES = r"[^\n]+|[\n]+"
THREES_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
EAST_ASIAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    EAST_ASIAN,
    ASCII_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
)
HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^"
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68\U00010570-\U000105bc"
    "\U00010d50-\U00010d85\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df2a]]"
)
"""Letters that have two cases, but those that the first DeepSeek's tokenizer does not list."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a vocabulary of bytes cuts text into words."""

    patterns: tuple[str, ...]
    whole_first: bool = False
    """Whether a word that is a token itself is not put together by merges."""
    composed: bool = False
    """Whether text is brought into Unicode's composed form before."""
    begins: bool = False
    """Whether a text begins with a token of its own, where the file does not say."""


_SHARED = {
    Words((GPT_2,)): "gpt-2 phi-2 gigachat a.x-4.0 mellum jais trillion granite-docling exaone4",
    Words((GPT_2,), composed=True): "mpt olmo",
    Words(
        (LLAMA_3,), whole_first=True, begins=True
    ): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    Words((LLAMA_3,)): "dbrx smaug-bpe chatglm-bpe",
    Words((LLAMA_3,), whole_first=True): "glm4 glm5",
    Words((QWEN_2,), composed=True): "qwen2 deepseek-r1-qwen kormo megrez stablelm2",
    Words((QWEN_2,)): "hunyuan solar-open grok-2",
    Words((r"\p{N}", GPT_2)): "starcoder refact smollm codeshell exaone minerva-7b mellum2",
    Words((r"\p{N}", GPT_2), composed=True): "command-r",
    Words((GPT_4O,), whole_first=True): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Words((THREES_FROM_THE_RIGHT, GPT_4O)): "tiny_aya cohere2moe",
    Words(DEEPSEEK_3): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    Words((BLOOM,)): "poro-chat bloom gpt3-finnish",
    Words((BAILING,)): "bailingmoe bailingmoe2 llada-moe",
}

_SINGLE = {
    "default": Words((r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "qwen35": Words((QWEN_35,)),
    "tekken": Words((TEKKEN,), whole_first=True, begins=True),
    "falcon": Words((r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": Words(
        (
            r"[\r\n]",
            rf"\s?{CASED}+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            HAN_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Words((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, r"\p{N}")),
    "spark2_5": Words(
        (
            *DEEPSEEK_3[:2],
            ASCII_WORD
            + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "youtu": Words(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+"
            "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
            f"|[\u3105-\u312f]+|{EAST_ASIAN}",
            GPT_4O.replace(r"\p{N}{1,3}", r"\p{N}"),
        ),
        whole_first=True,
    ),
    "jais-2": Words(
        (
            LLAMA_3.removesuffix(r"\s+(?!\S)|\s+")
            + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    "viking": Words((BLOOM, r"\p{N}")),
    "chameleon": Words(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT_2,
        ),
        begins=True,
    ),
    "exaone-moe": Words((EXAONE_MOE,)),
    "superbpe": Words((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "seed-coder": Words((QWEN_2.replace(SIGNS, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "kimi-k2": Words((KIMI,)),
    "ufakzeka": Words((QWEN_2.removeprefix(f"{CONTRACTION}|"),)),
    "afmoe": Words(
        (
            THREES_FROM_THE_RIGHT,
            "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
            "\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
            "\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
            DEEPSEEK_3[2],
        )
    ),
    "laguna": Words((LINES, QWEN_2)),
    "minicpm5": Words((r"\p{N}{1,3}", LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}+")), whole_first=True),
}

WORDS = _SINGLE | {name: words for words, names in _SHARED.items() for name in names.split()}
"""Words by `tokenizer.ggml.pre`; "default" for files of the time before it."""
