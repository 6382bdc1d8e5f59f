"""scripts/make_site.py: where links lead, and that each link of each page leads somewhere."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import make_site  # noqa: E402


class SiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_links_lead_to_pages_of_the_site(self):
        site = make_site.Site(["README.md", "docs/README.md", "docs/a.md", "docs/c.svg",
                               "core/README.md", "core/x.h", "examples/e.py"])
        for page, target, expected in (
                ("README.md", "docs/a.md#part", "docs/a.html#part"),
                ("docs/a.md", "../README.md", "../index.html"),
                ("docs/a.md", "README.md", "index.html"),
                ("docs/a.md", "../core", "../core/index.html"),
                ("docs/a.md", "../core/x.h", "../core/x.h.html"),
                ("docs/a.md", "../examples", "../examples/index.html"),
                ("docs/a.md", "c.svg", "c.svg"),
                ("docs/a.md", "#part", "#part"),
                ("docs/a.md", "https://a.b/c.md", "https://a.b/c.md")):
            self.assertEqual(site.rewrite(page, target), expected)
        self.assertEqual((site.sources, site.images, site.lists),
                         ({"core/x.h"}, {"docs/c.svg"}, {"examples"}))
        self.assertEqual(site.mistakes, [])
        site.rewrite("docs/a.md", "../core/y.h")
        site.rewrite("docs/a.md", "../../outside.md")
        self.assertEqual(site.mistakes, ["docs/a.md: ../core/y.h is no file of the clone",
                                         "docs/a.md: ../../outside.md is no file of the clone"])

    def test_a_check_sees_links_that_lead_nowhere(self):
        (self.folder / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#there">b</a>')
        (self.folder / "b.html").write_text('<p id="there"><a href="a.html"></a></p>')
        self.assertEqual(make_site.check(self.folder), [])
        (self.folder / "a.html").write_text(
            '<a href="c.html">c</a><a href="b.html#none">b</a><a href="#none">a</a>'
            '<a href="../x.html">x</a><img src="https://a.b/c.png"><script></script>')
        self.assertEqual(make_site.check(self.folder), [
            "a.html: loads https://a.b/c.png", "a.html: loads https://<script>",
            "a.html: c.html leads nowhere", "a.html: b.html#none names no heading",
            "a.html: #none names no heading", "a.html: ../x.html leads nowhere"])

    def test_each_link_of_this_clone_leads_somewhere(self):
        if not shutil.which("pandoc"):
            self.skipTest("there is no pandoc")
        if subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True).returncode != 0:
            self.skipTest("these sources are no clone")
        self.assertEqual(make_site.build(self.folder), [])
        self.assertEqual(make_site.check(self.folder), [])
        first = (self.folder / "index.html").read_text()
        self.assertIn("<title>Tailrace</title>", first)
        self.assertIn('href="docs/python.html"', first)


if __name__ == "__main__":
    unittest.main()
