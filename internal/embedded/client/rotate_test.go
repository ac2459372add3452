package client

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"
)

func TestRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := openRotated(dir, "web.stdout", 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.Write([]byte("abcdefghij")); n != 10 || err != nil {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	// Opened again, as by a later collector: it goes on where the last one stood.
	if r, err = openRotated(dir, "web.stdout", 2, 4); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Write([]byte("kl")); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = string(b)
	}
	if diff := cmp.Diff(map[string]string{"web.stdout.1": "efgh", "web.stdout.2": "ijkl"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestLogReader_Property reads a rotated log from any place and compares with the text that was written.
func TestLogReader_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		root, err := os.MkdirTemp(t.TempDir(), "alloc")
		if err != nil {
			rt.Fatal(err)
		}
		dir := allocDir{root}
		if err := dir.build(); err != nil {
			rt.Fatal(err)
		}
		out, err := openRotated(dir.logs(), "web.stdout", 1000, rapid.Int64Range(1, 9).Draw(rt, "size"))
		if err != nil {
			rt.Fatal(err)
		}
		var all bytes.Buffer
		for n := range rapid.IntRange(0, 6).Draw(rt, "writes") {
			text := strings.Repeat(fmt.Sprint(n), rapid.IntRange(0, 12).Draw(rt, "length"))
			all.WriteString(text)
			if _, err := out.Write([]byte(text)); err != nil {
				rt.Fatal(err)
			}
		}
		if err := out.Close(); err != nil {
			rt.Fatal(err)
		}
		offset := rapid.Int64Range(0, 80).Draw(rt, "offset")
		origin := rapid.SampledFrom([]string{"start", "end"}).Draw(rt, "origin")
		want := all.String()[min(offset, int64(all.Len())):]
		if origin == "end" {
			want = all.String()[max(0, int64(all.Len())-offset):]
		}
		opened, err := os.OpenRoot(root)
		if err != nil {
			rt.Fatal(err)
		}
		defer opened.Close()
		var got bytes.Buffer
		l := &logReader{root: opened, dir: dir.logs(), name: "web.stdout", send: func(f *api.StreamFrame) error {
			got.Write(f.Data)
			return nil
		}}
		if err := l.seek(origin, offset); err != nil {
			rt.Fatal(err)
		}
		if err := l.read(); err != nil {
			rt.Fatal(err)
		}
		if got.String() != want {
			rt.Fatalf("read %q, want %q", got.String(), want)
		}
	})
}

func TestCollector_IsFoundAgainAndReplaced(t *testing.T) {
	t.Parallel()
	dir := allocDir{t.TempDir()}
	if err := dir.build(); err != nil {
		t.Fatal(err)
	}
	if err := dir.buildTask("web"); err != nil {
		t.Fatal(err)
	}
	newCollector := func() *collector {
		return &collector{log: hclog.NewNullLogger(), spec: collectorSpec{Dir: dir.logs(), Task: "web", MaxFiles: 2, MaxBytes: 1 << 20}}
	}
	write := func(text string) {
		t.Helper()
		if out, err := exec.Command("/bin/sh", "-c", "echo "+text+" > "+dir.fifo("web", "stdout")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	read := func() string {
		b, err := os.ReadFile(filepath.Join(dir.logs(), "web.stdout.0"))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	first := newCollector()
	if err := first.ensure(); err != nil {
		t.Fatal(err)
	}
	pid := first.pid()
	write("one")
	write("two") // the end of a writer is no end of the log
	again := newCollector()
	if err := again.ensure(); err != nil || again.pid() != pid {
		t.Errorf("another collector was started: %d, %v, want %d", again.pid(), err, pid)
	}
	// No task holds the pipe open here, so what the collector has not read yet dies with it.
	until(t, "the lines", func() bool { return read() == "one\ntwo\n" })
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the collector", func() bool { return first.pid() == 0 })
	if err := again.ensure(); err != nil || again.pid() == 0 {
		t.Errorf("no new collector: %v", err)
	}
	write("three")
	again.stop()
	if again.pid() != 0 {
		t.Error("collector is still there")
	}
	if got := read(); got != "one\ntwo\nthree\n" {
		t.Errorf("log %q", got)
	}
	if err := again.ensure(); err != nil || again.pid() != 0 {
		t.Error("a stopped collector was started again")
	}
}
