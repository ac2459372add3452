package hostfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

// look reads a machine in every way that there is.
func look(files hostfs.FS) map[string]any {
	text, textErr := files.Text("proc/driver/nvidia/version")
	absent, absentErr := files.Text("proc/driver/none")
	brief, briefErr := files.Brief(func(text string) string { return text[:min(len(text), 3)] }, "etc/long")
	names, namesErr := files.Names("sys/bus/pci/devices")
	none, noneErr := files.Names("sys/none")
	_, folderErr := files.Text("sys/bus")
	target, linkErr := files.Link("sys/bus/pci/devices/0000:16:00.0/driver")
	_, noLinkErr := files.Link("sys/bus/none")
	cards, cardsErr := files.Accelerators("10de")
	return map[string]any{
		"text": []any{text, textErr}, "absent": []any{absent, absentErr}, "brief": []any{brief, briefErr},
		"names": []any{names, namesErr}, "no names": []any{none, noneErr}, "folder read as a file": folderErr != nil,
		"link": []any{target, linkErr}, "no link": errors.Is(noLinkErr, fs.ErrNotExist),
		"cards": []any{cards, cardsErr}, "glob": files.Glob("dev/card[0-9]*"), "empty glob": len(files.Glob("dev/none*")),
		"glob in the middle": files.Glob("sys/bus/*/devices"), "no pattern": files.Glob("dev/card1"),
		"there": files.Exists("dev/card1"), "not there": files.Exists("dev/card9"),
		"usable": files.Usable("dev/card1"), "absent node": errors.Is(files.Usable("dev/card9"), fs.ErrNotExist),
	}
}

// What was read of a machine is read the same of its recording, and nothing else is in it.
func TestReplay_ReadsAsTheMachine(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	pci(t, root, "0000:16:00.0", map[string]string{"vendor": "0x10de", "device": "0x2684", "class": "0x030000", "revision": "0xa1", "numa_node": "1", "driver": "nvidia"})
	for name, body := range map[string]string{
		"proc/driver/nvidia/version": " v1 \n", "etc/long": "keep nothing of the rest", "dev/card1": "", "dev/card2": "", "dev/disk": "", "etc/secret": "not asked for",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorder := hostfs.Record(root)
	want := look(hostfs.New(root))
	if diff := cmp.Diff(want, look(recorder.Files())); diff != "" {
		t.Errorf("recording changes what is read (-want +got):\n%s", diff)
	}
	made := recorder.Snapshot()
	if diff := cmp.Diff(want, look(hostfs.Replay(made))); diff != "" {
		t.Errorf("replay (-want +got):\n%s", diff)
	}
	if at := hostfs.Replay(made).Path("dev/kmsg"); at != "" {
		t.Errorf("a recorded machine has a place %q here", at)
	}
	if at := recorder.Files().Path("dev/kmsg"); at != filepath.Join(root, "dev", "kmsg") {
		t.Errorf("place %q", at)
	}
	if made.Texts["etc/long"] != "kee" || made.Texts["etc/secret"] != "" || cmp.Diff([]string{"card1", "card2"}, made.Folders["dev"]) != "" {
		t.Errorf("recorded %q, %v", made.Texts, made.Folders["dev"])
	}
}

func TestReplay_Errors(t *testing.T) {
	t.Parallel()
	s := hostfs.NewSnapshot()
	s.Errors["read dev/a"], s.Errors["names dev"], s.Usable["dev/a"] = fs.ErrPermission.Error(), "input/output error", false
	files := hostfs.Replay(s)
	if _, err := files.Text("dev/a"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error %v", err)
	}
	if _, err := files.Names("dev"); err == nil || !strings.HasSuffix(err.Error(), "input/output error") {
		t.Errorf("error %v", err)
	}
	if err := files.Usable("dev/a"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error %v", err)
	}
}

// No name leads out of the root.
func TestText_StaysUnderTheRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "outside"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(root, "machine")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if text, err := hostfs.New(inner).Text("../outside"); text != "" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
}
