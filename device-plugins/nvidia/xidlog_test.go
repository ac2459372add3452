package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

func TestParseXid(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		line string
		want *event
	}{
		"a record":                     {"3,42,2000001,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", &event{pci: "0000:3b:00.0", xid: 79}},
		"a record with a caller":       {"6,42,2000001,-,caller=T1;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", &event{pci: "0000:3b:00.0", xid: 79}},
		"a line of the journal":        {"May 19 07:08:57 host kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper: New row marked for remapping", &event{pci: "0000:10:1c.0", xid: 63}},
		"a line of dmesg":              {"[680111.646286] NVRM: Xid (PCI:000A:CA:00.0): 31, pid='<unknown>', name=<unknown>, MMU Fault; ENGINE", &event{pci: "000a:ca:00.0", xid: 31}},
		"a partition":                  {"NVRM: Xid (PCI:0000:98:00 GPU-I:05 GPU-CI:00): 31, pid=1", &event{pci: "0000:98:00.0", xid: 31, gi: ptr(5)}},
		"an old driver":                {"NVRM: Xid (0000:03:00): 14, Channel 00000001", &event{pci: "0000:03:00.0", xid: 14}},
		"a program wrote it":           {"12,42,2000001,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1", nil},
		"a program wrote of it":        {"4,42,2000001,-;somebody: NVRM: Xid (PCI:0000:3b:00): 79, pid=1", nil},
		"another error":                {"3,42,2000001,-;NVRM: GPU at PCI:0000:3b:00: GPU-x", nil},
		"no place":                     {"NVRM: Xid (): 79", nil},
		"no number":                    {"NVRM: Xid (PCI:0000:3b:00): seventy", nil},
		"a number too long for a code": {"NVRM: Xid (PCI:0000:3b:00): 4294967296, x", nil},
		"nothing":                      {"", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := parseXid(tc.line)
			if ok != (tc.want != nil) {
				t.Fatalf("got %+v, %v", got, ok)
			}
			if diff := cmp.Diff(tc.want, &got, cmp.AllowUnexported(event{})); ok && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParseXid(f *testing.F) {
	f.Add("3,42,2000001,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.")
	f.Add("[1.2] NVRM: Xid (PCI:0000:98:00 GPU-I:05 GPU-CI:00): 31")
	f.Fuzz(func(t *testing.T, line string) {
		e, ok := parseXid(line)
		if ok && (e.xid < 1 || len(e.pci) < len("0000:00:00.0") || e.uuid != "") {
			t.Errorf("event %+v", e)
		}
	})
}

// logBox is a machine with the log of a kernel, of which the old part is there before anybody reads.
type logBox struct {
	t    *testing.T
	root string
}

func newLogBox(t *testing.T) logBox {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows the log of its kernel as a file")
	}
	b := logBox{t, t.TempDir()}
	b.must(os.MkdirAll(filepath.Join(b.root, "dev"), 0o755))
	b.must(os.WriteFile(b.path(), []byte("3,1,1,-;NVRM: Xid (PCI:0000:03:00): 79, it is long ago\n"), 0o644))
	return b
}

func (b logBox) path() string { return filepath.Join(b.root, "dev/kmsg") }

func (b logBox) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b logBox) say(text string) {
	b.t.Helper()
	f, err := os.OpenFile(b.path(), os.O_APPEND|os.O_WRONLY, 0)
	b.must(err)
	_, err = f.WriteString(text)
	b.must(err)
	b.must(f.Close())
}

func heard(l *kernelLog) []string {
	events, ok := l.read()
	if !ok {
		return []string{"it cannot be read"}
	}
	out := []string{}
	for _, e := range events {
		out = append(out, fmt.Sprintf("%s %d", e.pci, e.xid))
	}
	return out
}

func TestKernelLog_TellsOnlyWhatIsNewAndNeverWaits(t *testing.T) {
	t.Parallel()
	b := newLogBox(t)
	l := newKernelLog(Config{Root: b.root})
	want := func(what string, lines ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, lines...), heard(&l)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("what is old")
	b.say("6,2,2,-;usb 1-1: new device\n3,3,3,-;NVRM: Xid (PCI:0000:83:00): 48, x\n SUBSYSTEM=pci\n3,4,4,-;NVRM: Xid (PCI:0000:83:00): 48, again\n3,5,5,-;NVRM: Xid (PCI:00")
	want("a record that repeats and half a record", "0000:83:00.0 48")
	b.say("00:43:00): 31, y\n")
	want("the other half", "0000:43:00.0 31")
	want("nothing new")
	b.say(strings.Repeat("x", 3*logChunk) + "\n3,6,6,-;NVRM: Xid (PCI:0000:84:00): 79, z\n")
	want("a line without end", "0000:84:00.0 79")
	if len(l.rest) > logChunk {
		t.Errorf("%d bytes are kept", len(l.rest))
	}
	again := newKernelLog(Config{Files: hostfs.Replay(hostfs.NewSnapshot())})
	if got := heard(&again); got[0] != "it cannot be read" {
		t.Errorf("a machine that is played again: %v", got)
	}
	none := newKernelLog(Config{Root: t.TempDir()})
	if got := heard(&none); got[0] != "it cannot be read" {
		t.Errorf("a machine without a log: %v", got)
	}
}

func TestDetect_XidsOfTheKernelsLogWhereThereIsNoLibrary(t *testing.T) {
	t.Parallel()
	b := newLogBox(t)
	cfg := device.DefaultConfig()
	d := New(Config{
		Root: b.root, SMI: standIn(t, "a40-one-dead"), XidHardware: cfg.XidHardware, XidApplication: cfg.XidApplication,
	}, hclog.NewNullLogger())
	ctx := context.Background()
	first, err := d.Detect(ctx)
	b.must(err)
	if told := d.Events(); told == nil || len(told) != 0 {
		t.Errorf("before anything happened: %v", told)
	}
	b.say("3,2,2,-;NVRM: Xid (PCI:0000:43:00): 31, pid=7, name=python\n3,3,3,-;NVRM: Xid (PCI:0000:c3:00): 48, pid=7\n3,4,4,-;NVRM: Xid (PCI:0000:99:00): 79, not ours\n")
	cards, err := d.Detect(ctx)
	b.must(err)
	want := []device.Event{
		{Card: first[2].UUID, Code: "xid-31", Text: xidText(31), Blame: device.BlameJob},
		{Card: first[6].UUID, Code: "xid-48", Text: xidText(48), Blame: device.BlameCard},
	}
	if diff := cmp.Diff(want, d.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(show(first), show(cards)); diff != "" {
		t.Errorf("the reading itself changed (-want +got):\n%s", diff)
	}
}
