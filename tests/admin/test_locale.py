"""The Korean translation is complete, compiled, and shown."""

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.utils import translation

from jobqueue.db.clock import UtcNowPlus
from jobqueue.management.commands.jobs import SUBCOMMANDS
from tests.admin.helpers import JOBS, WORKERS, job_page, root, text_of
from tests.architecture.test_layers import none_of
from tests.factories import make_in_state, make_job

PACKAGE = Path(__file__).parents[2] / "jobqueue"
FOLDER = PACKAGE / "locale" / "ko" / "LC_MESSAGES"
STRING = r'"(?:[^"\\]|\\.)*"'


def read_po():
    """(msgid, plural, [msgstr...], flags) of every entry but the header."""
    entries = []
    for block in (FOLDER / "django.po").read_text().split("\n\n"):
        found = re.findall(rf"^(msg\w+(?:\[\d\])?) ((?:{STRING}\n?)+)", block, re.M)
        parts = {key: "".join(ast.literal_eval(s) for s in re.findall(STRING, text)) for key, text in found}
        if parts.get("msgid"):
            strings = [text for key, text in parts.items() if key.startswith("msgstr")]
            entries.append((parts["msgid"], parts.get("msgid_plural"), strings, re.findall("^#.*", block, re.M)))
    return entries


ENTRIES = read_po()


def in_code():
    """Every text that is marked for translation in Python."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            marks = ("_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in marks and node.args:
                yield ast.literal_eval(node.args[0])


def in_templates():
    for path in PACKAGE.rglob("*.html"):
        text = path.read_text()
        yield from re.findall(r'{% translate "([^"]+)"', text)
        for block in re.findall(r"{% blocktranslate[^%]*%}(.*?){% endblocktranslate", text, re.S):
            yield re.sub(r"{{ (\w+) }}", r"%(\1)s", block)


def test_every_marked_text_has_a_translation():
    known = {msgid for msgid, *_ in ENTRIES}
    missing = sorted((set(in_code()) | set(in_templates())) - known)
    assert not missing, "run makemessages in jobqueue/ and translate these"


def faults_of(msgid, strings, flags):
    """What is wrong with one entry."""
    if len(strings) != 1 or not strings[0].strip():
        return "is not translated"
    if [flag for flag in flags if "fuzzy" in flag or flag.startswith("#~")]:
        return "is fuzzy or out of use"
    holes = [sorted(re.findall(r"%\(\w+\)[sd]|%[sd]", text)) for text in (msgid, strings[0])]
    if holes[0] != holes[1]:
        return "has other holes than its translation"
    if msgid.endswith(".") != strings[0].endswith(".") and msgid != "no.":
        return "ends with a full stop in one language only"
    return ""


def test_no_message_is_fuzzy_or_untranslated():
    none_of(f"{msgid!r} {fault}" for msgid, _, strings, flags in ENTRIES if (fault := faults_of(msgid, strings, flags)))


def test_the_compiled_file_matches_the_text():
    with (FOLDER / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)._catalog
    wanted = {((msgid, 0) if plural else msgid): strings[0] for msgid, plural, strings, _ in ENTRIES}
    assert {key: text for key, text in compiled.items() if key} == wanted


def test_nobody_is_named_in_the_header():
    header = (FOLDER / "django.po").read_text().partition("\n\n")[0]
    assert "@" not in header
    assert "Last-Translator" not in header


def test_one_word_for_one_thing():
    words = {
        "queue": "큐",
        "job": "작업",
        "lease": "임대",
        "worker": "워커",
        "attempt": "시도",
        "dead letter": "데드 레터",
    }
    words |= {"retr": "재시도", "cancel": "취소", "discard": "폐기", "release lease": "임대 해제"}
    commands = re.compile(rf"\bjobs ({'|'.join(SUBCOMMANDS)})\b")  # are not translated
    for msgid, _plural, (text,), _flags in ENTRIES:
        said = commands.sub("", msgid).lower()
        for word, korean in words.items():
            if re.search(rf"\b{word}", said) and "started at" not in msgid:
                assert korean in text, f"{msgid!r} has {word!r}"


@pytest.mark.django_db
def test_the_pages_are_korean(settings):
    settings.LANGUAGE_CODE = "ko"
    make_in_state("FAILED", "dead")
    busy = make_in_state("PROCESSING", "busy")
    job_id = make_job("later", run_at=UtcNowPlus(7255))
    with translation.override("ko"):
        client = root()
        page = text_of(client.get(JOBS))
        for text in (
            "작업 큐",
            "실패한 시도",
            "예약됨",
            "실행 중",
            "지금 재시도",
            "정확한 작업 ID",
            "2h 0m 후",
        ):
            assert text in page, text
        page = text_of(client.get(job_page(job_id)))
        for text in (
            "다음 동작",
            "2h 0m 후 실행 시각이 되면 later 큐의",
            "페이로드",
            "폐기",
            "내부 정보",
            f"작업 {job_id}",
        ):
            assert text in page, text
        assert "임대" in text_of(client.get(job_page(busy)))
        assert "워커" in text_of(client.get(WORKERS))
        response = client.post(JOBS, {"action": "cancel", "_selected_action": job_id, "index": 0}, follow=True)
        assert "작업 1개를 취소했습니다." in text_of(response)
        # The first words are Django's, and other ones since 6.1.
        assert re.search("변경 (이력|히스토리): 작업", text_of(client.get(f"{JOBS}{job_id}/history/")))
