"""The pages under docs build as a site with mdBook, and each decision has its three parts."""

import re

from conftest import ROOT, run


def test_every_page_is_in_the_book(tmp_path):
    done = run(f"mdbook build docs --dest-dir {tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\b(WARN|ERROR)\b", done.stdout + done.stderr), done.stdout + done.stderr
    summary = (ROOT / "docs" / "SUMMARY.md").read_text()
    listed = set(re.findall(r"\]\(([^)]+)\.md\)", summary))
    written = {
        str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")
    } - {"SUMMARY"}
    assert listed == written
    for page in listed:
        assert "<main>" in (tmp_path / f"{page}.html").read_text(), page


def test_decisions_have_context_choice_and_measurement():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    wanted = ["Context", "Choice", "Measurement"]
    lacking = {}
    for page in pages:
        headings = re.findall(r"^## (.+)$", page.read_text(), re.M)
        if [heading for heading in headings if heading in wanted] != wanted:
            lacking[page.name] = headings
    assert len(pages) > 60 and lacking == {}
