package driver

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

var update = flag.Bool("update", false, "write the isolation table into the docs")

// The isolation tables of the docs are made from what the backends say of themselves.
const (
	tableBegin = "<!-- isolation: made by go test ./task-driver/driver -run TestDocs_Isolation -update -->\n"
	tableEnd   = "<!-- end of isolation -->"
)

type tongue struct {
	page, head, every string
	words             map[share.Enforcement]string
	limits            func(share.Isolation) string
}

func TestDocs_IsolationIsWhatBackendsSay(t *testing.T) {
	for _, l := range []tongue{
		{
			page: "../../docs/shares.md", every: "every",
			head: "| Brand | Backend | QoS | Memory | Compute | Faults | Sight | To know |\n|---|---|---|---|---|---|---|---|\n",
			words: map[share.Enforcement]string{
				share.ByHardware: "hardware", share.ByDriver: "driver", share.ByLibrary: "library", share.Watched: "watched", share.NotAtAll: "no",
			},
			limits: func(i share.Isolation) string { return i.Limits },
		},
		{
			page: "../../docs/zh-CN/shares.md", every: "所有",
			head: "| 品牌 | 后端 | QoS | 显存 | 算力 | 故障 | 可见性 | 须知 |\n|---|---|---|---|---|---|---|---|\n",
			words: map[share.Enforcement]string{
				share.ByHardware: "硬件", share.ByDriver: "驱动", share.ByLibrary: "库", share.Watched: "监视", share.NotAtAll: "无",
			},
			limits: func(i share.Isolation) string { return i.LimitsZH },
		},
	} {
		path := filepath.FromSlash(l.page)
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, begun := strings.Cut(string(body), tableBegin)
		have, after, ended := strings.Cut(rest, tableEnd)
		if !begun || !ended {
			t.Fatalf("%s: the marks around the table are gone", l.page)
		}
		want := l.table()
		if have == want {
			continue
		}
		if !*update {
			t.Errorf("%s is stale, run go test ./task-driver/driver -run TestDocs_Isolation -update (-want +got):\n%s", l.page, cmp.Diff(want, have))
			continue
		}
		if err := os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (l tongue) table() string {
	var out strings.Builder
	out.WriteString(l.head)
	for _, b := range newBackends(share.Host{Tool: sharetest.NewTools(nil), Root: "/nowhere", Dir: "/shares"}, settings{}) {
		brand := "`" + string(b.Vendor()) + "`"
		if b.Vendor() == "" {
			brand = l.every
		}
		i := b.Describe()
		cells := []string{
			brand, "`" + b.Name() + "`", "`" + string(i.QoS) + "`",
			l.words[i.Memory], l.words[i.Compute], l.words[i.Faults], l.words[i.Sight], strings.ReplaceAll(l.limits(i), "|", `\|`),
		}
		out.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return out.String()
}
