package heteroflow_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/driver"
)

// page is a document as far as the tests look at it.
type page struct {
	path   string
	prose  string   // the text without its code
	levels []int    // of the headings, in order
	titles []string // of the headings
	fences int      // lines that begin or end a block of code
}

var (
	fence   = regexp.MustCompile("^\\s*```")
	heading = regexp.MustCompile(`^(#+) (.+)`)
)

func readPage(t *testing.T, path string) page {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := page{path: path}
	var prose strings.Builder
	for line := range strings.Lines(string(src)) {
		if fence.MatchString(line) {
			p.fences++
			continue
		}
		if p.fences%2 == 1 {
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			p.levels, p.titles = append(p.levels, len(m[1])), append(p.titles, strings.TrimSpace(m[2]))
		}
		prose.WriteString(line)
	}
	p.prose = prose.String()
	return p
}

// parts are the texts under the headings of the second level, in order.
func (p page) parts() []string {
	return regexp.MustCompile(`(?m)^## `).Split(p.prose, -1)[1:]
}

// anchors are the names by which a link reaches a heading: lower case, without punctuation, dashes for blanks.
func (p page) anchors() []string {
	var out []string
	for _, title := range p.titles {
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, title))
	}
	return out
}

// userPages are the pages in English with their twins in Chinese.
func userPages(t *testing.T) map[string]string {
	t.Helper()
	pairs := map[string]string{"README.md": "README.zh-CN.md"}
	for _, dir := range []string{"docs", "docs/zh-CN"} {
		files, err := filepath.Glob(dir + "/*.md")
		if err != nil || len(files) == 0 {
			t.Fatalf("no pages in %s: %v", dir, err)
		}
		for _, file := range files { // from either folder, so that neither has a page of its own
			name := filepath.Base(file)
			pairs["docs/"+name] = "docs/zh-CN/" + name
		}
	}
	return pairs
}

// Headings and code must agree between the two languages, so that a section added to one is missed in the other.
func TestDocs_BothLanguages(t *testing.T) {
	t.Parallel()
	for english, chinese := range userPages(t) {
		t.Run(english, func(t *testing.T) {
			t.Parallel()
			en, zh := readPage(t, english), readPage(t, chinese)
			if !slices.Equal(en.levels, zh.levels) {
				t.Errorf("%s and %s have different sections: %v and %v", english, chinese, en.levels, zh.levels)
			}
			if en.fences != zh.fences || en.fences%2 != 0 {
				t.Errorf("%s and %s have different blocks of code: %d and %d fences", english, chinese, en.fences, zh.fences)
			}
		})
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, m := range link.FindAllStringSubmatch(readPage(t, file).prose, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue // tests run without a network
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", file, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(readPage(t, target).anchors(), anchor) {
				t.Errorf("%s links to %s, which has no such heading", file, m[1])
			}
		}
	}
}

// pluginParts are the parts of a plugin's page. The order is the house's, so that readers find the same thing in the
// same place.
var pluginParts = []string{
	"What it does", "Requirements", "Install", "Example job", "Configuration", "Fingerprinted attributes",
	"Environment given to the task", "Known limits", "What was checked",
}

// pluginPages are the pages of plugins with the schemas of what is configured there.
func pluginPages() map[string][]*hclspec.Spec {
	log := hclog.NewNullLogger()
	runner := driver.New(driver.Options{Log: log})
	defer runner.Close()
	return map[string][]*hclspec.Spec{
		"device-plugin.md": {device.New(nil, log).ConfigSchema()},
		"task-driver.md":   {runner.ConfigSchema(), runner.TaskConfigSchema()},
	}
}

func TestDocs_PluginPagesHaveTheSameParts(t *testing.T) {
	t.Parallel()
	for name := range pluginPages() {
		var titles []string
		p := readPage(t, "docs/"+name)
		for i, title := range p.titles {
			if p.levels[i] == 2 {
				titles = append(titles, title)
			}
		}
		if !slices.Equal(titles, pluginParts) {
			t.Errorf("%s has the parts %q, want %q", p.path, titles, pluginParts)
		}
	}
}

// A brand that is added must be added to the tables of both pages, its variables too.
func TestDocs_PluginPagesNameEveryBrand(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"docs/", "docs/zh-CN/"} {
		devices, tasks := readPage(t, dir+"device-plugin.md"), readPage(t, dir+"task-driver.md")
		for _, v := range accel.Vendors() {
			for _, p := range []page{devices, tasks} {
				if !strings.Contains(p.prose, "\n| `"+string(v)+"` |") {
					t.Errorf("%s has no row of the brand %s", p.path, v)
				}
			}
		}
		for name := range accel.VisibleEnv(nil) {
			if !strings.Contains(tasks.prose, "`"+name+"`") {
				t.Errorf("%s does not name the variable %s", tasks.path, name)
			}
		}
	}
}

// Every option of a plugin is named in the part about its configuration, in both languages, and a default that the
// schema has is the one in the option's row.
func TestDocs_PluginPagesNameEveryOption(t *testing.T) {
	t.Parallel()
	for name, schemas := range pluginPages() {
		for _, dir := range []string{"docs/", "docs/zh-CN/"} {
			p := readPage(t, dir+name)
			parts := p.parts()
			if len(parts) != len(pluginParts) {
				t.Errorf("%s has %d parts, want %d", p.path, len(parts), len(pluginParts))
				continue
			}
			text := parts[slices.Index(pluginParts, "Configuration")]
			for _, schema := range schemas {
				for _, o := range options(schema, "", "") {
					o.checkIn(t, p.path, text)
				}
			}
		}
	}
}

// option is one option of a schema.
type option struct {
	path, name string // path is docker.enabled, name enabled
	fallback   string // literal of the default, empty without one
}

// checkIn looks for the option in the text: by its path, or where it is part of a block that has a row of its own, by
// its name alone.
func (o option) checkIn(t *testing.T, file, text string) {
	t.Helper()
	if !strings.Contains(text, "`"+o.path+"`") && !strings.Contains(text, "`"+o.name+"`") {
		t.Errorf("%s does not name the option %s", file, o.path)
	}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`"+o.path+"`") || o.fallback == "" || o.fallback == `""` {
			continue
		}
		if !strings.Contains(cells[3], "`"+o.fallback+"`") {
			t.Errorf("%s says the default of %s is %s, the schema says %s", file, o.path, strings.TrimSpace(cells[3]), o.fallback)
		}
	}
}

// options lists what a schema has, blocks and what is in them. Blocks with free keys have no options of their own.
func options(spec *hclspec.Spec, parent, key string) []option {
	var out []option
	at := func(name string) option {
		if name == "" {
			name = key
		}
		return option{path: strings.TrimPrefix(parent+"."+name, "."), name: name}
	}
	block := func(name string, nested *hclspec.Spec) []option {
		o := at(name)
		return append([]option{o}, options(nested, o.path, "")...)
	}
	switch {
	case spec.GetObject() != nil:
		fields := spec.GetObject().GetAttributes()
		for name, field := range fields {
			out = append(out, options(field, parent, name)...)
		}
	case spec.GetAttr() != nil:
		out = append(out, at(spec.GetAttr().GetName()))
	case spec.GetDefault() != nil:
		out = options(spec.GetDefault().GetPrimary(), parent, key)
		for i := range out {
			out[i].fallback = spec.GetDefault().GetDefault().GetLiteral().GetValue()
		}
	case spec.GetBlockValue() != nil:
		out = block(spec.GetBlockValue().GetName(), spec.GetBlockValue().GetNested())
	case spec.GetBlockList() != nil:
		out = block(spec.GetBlockList().GetName(), spec.GetBlockList().GetNested())
	case spec.GetBlockAttrs() != nil:
		out = append(out, at(spec.GetBlockAttrs().GetName()))
	default:
		panic("a schema of a kind that this test does not know: add it here")
	}
	return out
}

// Decisions are numbered from 1 without a gap, and the title of each has the number of its file.
func TestDecisions_AreNumbered(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("docs/adr/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d decisions, %v", len(files), err)
	}
	for i, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if number := fmt.Sprintf("%04d-", i+1); !strings.HasPrefix(filepath.Base(file), number) || !strings.HasPrefix(string(body), fmt.Sprintf("# %d. ", i+1)) {
			t.Errorf("%s is decision %d: name the file %s… and its title %d", file, i+1, number, i+1)
		}
	}
}
