package command

import (
	"flag"
	"os"
	"regexp"
	"testing"
)

func TestDocs_NameEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../../../docs/cli.md", "../../../docs/zh-CN/cli.md"} {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		says := func(words string) bool {
			return regexp.MustCompile("[` ]" + regexp.QuoteMeta(words) + "[` ]").Match(src)
		}
		for name, build := range registry {
			if !says(name) {
				t.Errorf("%s does not name the command %s", path, name)
			}
			build(Env{Getenv: func(string) string { return "" }}).flags.VisitAll(func(f *flag.Flag) {
				if !says("-" + f.Name) {
					t.Errorf("%s does not name -%s of %s", path, f.Name, name)
				}
			})
		}
	}
}
