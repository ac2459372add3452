package bronze

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// recorded is what a maker's tool printed, kept with its source by the detector of the brand.
func recorded(t testing.TB, brand, file string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("../../../device-plugins", brand, "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// busy puts lines of processes, written after the heading of the recorded table, in the place of the line that says there are none.
func busy(text, none string, lines ...string) string {
	before, after, found := strings.Cut(text, none)
	if !found {
		panic("the recorded table has no line " + none)
	}
	start := strings.LastIndex(before, "\n") + 1
	_, after, _ = strings.Cut(after, "\n")
	return before[:start] + strings.Join(lines, "\n") + "\n" + after
}

func TestReaders(t *testing.T) {
	t.Parallel()
	at := func(index int, uuid, pci string, nodes ...string) grant.Card {
		return grant.Card{UUID: uuid, Index: index, PCI: pci, Nodes: nodes}
	}
	for name, c := range map[string]struct {
		vendor accel.Vendor
		tool   string
		out    string
		cards  []grant.Card
		want   []Use
	}{
		"Moore Threads, recorded": {accel.MThreads, "mthreads-gmi", recorded(t, "mthreads", "table-s80-1.14.0-busy.txt"),
			[]grant.Card{at(3, "A", "0000:01:00.0")}, []Use{use("A", 120, 2), use("A", 2022, 1333)}},
		"Intel, recorded": {accel.Intel, "xpu-smi", recorded(t, "intel", "table-b580-v2.0.txt"),
			[]grant.Card{at(0, "A", "0000:03:00.0")}, []Use{use("A", 2874292, 206)}},
		"Kunlunxin, recorded without processes": {accel.Kunlunxin, "xpu-smi", recorded(t, "kunlunxin", "table-p800-oam-5.0.21.26.txt"),
			[]grant.Card{at(0, "A", "0000:52:00.0")}, nil},
		"Kunlunxin, the other spelling": {accel.Kunlunxin, "xpu_smi", busy(recorded(t, "kunlunxin", "table-p800-oam-5.0.21.26.txt"), "No running processes found",
			"|    1  N/A  N/A      4711      C   python3 train 7                  9215MiB |"),
			[]grant.Card{at(0, "A", "0000:52:00.0"), at(1, "B", "0000:55:00.0")}, []Use{use("B", 4711, 9215)}},
		"MetaX": {accel.MetaX, "mx-smi", busy(recorded(t, "metax", "table-c500-2.3.1.txt"), "no process found",
			"|  0                    4711         python3                      9215           |"),
			[]grant.Card{at(0, "A", "0000:12:00.0")}, []Use{use("A", 4711, 9215)}},
		"Iluvatar": {accel.Iluvatar, "ixsmi", busy(recorded(t, "iluvatar", "table-bi-v150-two-chips-4.3.0.txt"), "No running processes found",
			"|    1       4711      python3                                         9215 |", "|    7       4712      python3                                         1 |"),
			[]grant.Card{at(0, "A", "0000:10:00.0"), at(1, "B", "0000:13:00.0")}, []Use{use("B", 4711, 9215)}},
		"Cambricon": {accel.Cambricon, "cnmon", busy(recorded(t, "cambricon", "table-mlu370x8-5.10.13.txt"), "No running processes found",
			"|  1     /   4711    python3 -m train                              9215 MiB   |", "|  0     /   4712    python3                                       N/A   |"),
			[]grant.Card{at(0, "A", "0000:39:00.0"), at(1, "B", "0000:3d:00.0")}, []Use{use("B", 4711, 9215), {Card: "A", PID: 4712}}},
		"Cambricon, without addresses": {accel.Cambricon, "cnmon", busy(recorded(t, "cambricon", "table-mlu370x4-4.20.11.txt"), "No running processes found",
			"|  2     /   4711    python3                                       9215 MiB   |"),
			[]grant.Card{at(2, "C", "0000:39:00.0")}, []Use{use("C", 4711, 9215)}},
		"Ascend": {accel.Ascend, "npu-smi", busy(recorded(t, "ascend", "info-910b2c-23.0.3.txt"), "No running processes found in NPU 1",
			"| 1       0                 | 4711          | python3                  | 9215                    |"),
			[]grant.Card{at(0, "A", "0000:5a:00.0", "/dev/davinci0"), at(1, "B", "0000:29:00.0", "/dev/davinci1")}, []Use{use("B", 4711, 9215)}},
		"Hygon, recorded: cards only": {accel.Hygon, "hy-smi", recorded(t, "hygon", "showmeminfo-vram-hcu.txt"),
			[]grant.Card{at(0, "A", ""), at(1, "B", "")}, []Use{{Card: "A", MemoryMiB: use("", 0, 2).MemoryMiB}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tools := sharetest.NewTools(map[string]func([]string) share.Output{c.tool: func([]string) share.Output { return share.Output{Stdout: c.out} }})
			got, err := Readers(share.Host{Tool: tools})[c.vendor].Uses(t.Context(), c.cards)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			broken := sharetest.NewTools(map[string]func([]string) share.Output{c.tool: func([]string) share.Output { return share.Output{Stderr: "driver not loaded", ExitCode: 3} }})
			if _, err := Readers(share.Host{Tool: broken})[c.vendor].Uses(t.Context(), c.cards); err == nil || !strings.Contains(err.Error(), "exits with 3: driver not loaded") {
				t.Errorf("of a tool that fails: %v", err)
			}
			silent := sharetest.NewTools(map[string]func([]string) share.Output{c.tool: func([]string) share.Output { return share.Output{Stdout: "no table\n"} }})
			if uses, err := Readers(share.Host{Tool: silent})[c.vendor].Uses(t.Context(), c.cards); err == nil {
				t.Errorf("of a tool that tells nothing: %v", uses)
			}
		})
	}
}

func TestAMD_Uses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, body := range map[string]string{
		"topology/nodes/0/gpu_id": "0\n", "topology/nodes/0/properties": "location_id 0\ndomain 0\n",
		"topology/nodes/2/gpu_id": "51545\n", "topology/nodes/2/properties": "simd_count 320\nlocation_id 2560\ndomain 0\n",
		"topology/nodes/3/gpu_id": "7\n", "topology/nodes/3/properties": "location_id 9984\ndomain 1\n",
		"proc/4711/vram_51545": "2097153\n", "proc/4711/vram_7": "0\n", "proc/4712/vram_7": "?\n", "proc/4713/pasid": "1\n",
	} {
		path = filepath.Join(root, "sys/class/kfd/kfd", path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	cards := []grant.Card{{UUID: "A", PCI: "0000:0a:00.0"}, {UUID: "B", PCI: "0001:27:00.0"}}
	uses, err := AMD{Host: share.Host{Root: root}}.Uses(t.Context(), cards)
	got := map[string]string{}
	for _, u := range uses {
		text := "unknown"
		if u.MemoryMiB != nil {
			text = strconv.FormatUint(*u.MemoryMiB, 10)
		}
		got[u.Card+" "+strconv.Itoa(u.PID)] = text
	}
	if diff := cmp.Diff(map[string]string{"A 4711": "3", "B 4711": "0", "B 4712": "unknown"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if _, err := (AMD{Host: share.Host{Root: t.TempDir()}}).Uses(t.Context(), cards); err == nil {
		t.Error("a machine without the driver told something")
	}
}

// Of a card of which only the whole is told, all tasks are warned together and none is stopped.
func TestWatch_OfWholeCards(t *testing.T) {
	t.Parallel()
	live := map[share.ID]share.Ask{}
	for _, task := range []string{"1", "2"} {
		a := ask(task, "H-1", 1000)
		a.Vendor, a.ID = accel.Hygon, share.NewID(task, accel.Hygon, "H-1")
		live[a.ID] = a
	}
	c, ts := &cards{}, &tasks{}
	b := New(share.Host{}, map[accel.Vendor]Reader{accel.Hygon: wholes{c}}, Options{Overuse: Stop, Clock: clock.NewFake(time.Unix(1e9, 0))})
	w := &watch{b: b, tasks: ts, seen: map[share.ID]*seen{}, deaf: map[accel.Vendor]bool{}}
	look := func() []string { w.look(t.Context(), live); return ts.take() }
	c.set(nil, use("H-1", 0, 2064))
	for range 3 {
		if said := look(); len(said) > 0 {
			t.Fatalf("within what all were given, and told %q", said)
		}
	}
	c.set(nil, use("H-1", 0, 2065))
	look()
	said := look()
	if len(said) != 2 || !strings.HasPrefix(said[0], "tell ") || !strings.Contains(said[0], "all shares by agreement on it together were given") || !strings.HasPrefix(said[1], "tell ") {
		t.Errorf("told %q", said)
	}
	c.set(nil, Use{Card: "H-1"})
	if said := look(); len(said) > 0 {
		t.Errorf("nothing is known of the card, and told %q", said)
	}
	var told []string
	if _, err := b.Prepare(t.Context(), live[share.NewID("1", accel.Hygon, "H-1")], func(text string) { told = append(told, text) }); err != nil || !strings.Contains(told[0], "all are warned") {
		t.Errorf("told %q, %v", told, err)
	}
}

// wholes is a reader that tells cards only.
type wholes struct{ *cards }

func (wholes) OnlyCards() {}

func FuzzParseProcesses(f *testing.F) {
	for _, of := range [][2]string{{"mthreads", "table-s80-1.14.0-busy.txt"}, {"intel", "table-b580-v2.0.txt"}, {"ascend", "info-910b2c-23.0.3.txt"}, {"kunlunxin", "table-p800-oam-5.0.21.26.txt"}} {
		f.Add(recorded(f, of[0], of[1]))
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines, err := parseProcesses(text)
		for _, l := range lines {
			if l.pid <= 0 || l.card == "" || err != nil {
				t.Errorf("read %+v of %q (%v)", l, text, err)
			}
		}
		numbered(text, []grant.Card{{UUID: "A", PCI: "0000:01:00.0"}}, 1)
	})
}

func FuzzParseHeld(f *testing.F) {
	f.Add("HCU[0]          : vram Total Used Memory (MiB): 2\n")
	f.Add("DCU[1] : vram Total Used Memory (B): 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		for card := range parseHeld(text) {
			if card < 0 {
				t.Errorf("read card %d of %q", card, text)
			}
		}
	})
}

func FuzzLocation(f *testing.F) {
	f.Add("location_id 2560\ndomain 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		if at := location(text); at != "" && !address.MatchString(at) {
			t.Errorf("read %q of %q", at, text)
		}
	})
}
