package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose/bundle"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

func sample() bundle.Bundle {
	s := hostfs.NewSnapshot()
	s.Texts["sys/bus/pci/devices/0000:01:00.0/vendor"], s.Texts["etc/empty"] = "0x10de", ""
	s.Folders["sys/bus/pci/devices"], s.Links["a/driver"], s.Present["dev/a"] = []string{"0000:01:00.0"}, "../x", true
	s.Usable["dev/a"], s.Errors["read dev/b"] = false, "permission denied"
	return bundle.Bundle{
		About: bundle.About{Format: bundle.Format, Made: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "1", System: "linux/amd64"},
		Calls: vendorcli.Recording{Looks: map[string]string{"x": "/bin/x"}, Calls: []vendorcli.Call{
			{Argv: []string{"tool", "-a"}, ExitCode: 3, Took: 7 * time.Millisecond, Stdout: "out\n\xff", Stderr: "bad"},
			{Argv: []string{"tool"}, ExitCode: -1, Failure: vendorcli.TimeLimit, Took: 4 * time.Second},
			{Argv: []string{"none"}, ExitCode: -1, Failure: vendorcli.Absent},
		}},
		Snapshot: s, Findings: []byte(`{"brands":[]}`), History: []byte("{}\n"),
	}
}

func packed(t testing.TB, b bundle.Bundle) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := b.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRead_WhatWasWritten(t *testing.T) {
	t.Parallel()
	want := sample()
	got, err := bundle.Read(bytes.NewReader(packed(t, want)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

type entry struct {
	name, body string
	kind       byte
	link       string
	size       int64
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	a := tar.NewWriter(zipped)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		size := int64(len(e.body))
		if err := a.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Size: max(size, e.size), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(a, e.body); err != nil {
			t.Fatal(err)
		}
		for left := e.size - size; left > 0; {
			n, err := a.Write(make([]byte, min(left, 1<<20)))
			if err != nil {
				t.Fatal(err)
			}
			left -= int64(n)
		}
	}
	if err := errors.Join(a.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRead_RefusesWhatIsNotToBeTrusted(t *testing.T) {
	t.Parallel()
	index := entry{name: "bundle.json", body: `{"format":1}`}
	findings := entry{name: "findings.json", body: `{}`}
	many := []entry{index, findings}
	for i := range 20_001 {
		many = append(many, entry{name: fmt.Sprintf("files/%d", i)})
	}
	whole := packed(t, sample())
	cases := map[string]struct {
		body []byte
		says string
	}{
		"no file at all":             {nil, "EOF"},
		"text":                       {[]byte("hello"), "no .tar.gz file"},
		"an empty archive":           {archive(t), "has no bundle.json"},
		"cut off":                    {whole[:len(whole)/2], "EOF"},
		"a path that leads out":      {archive(t, index, findings, entry{name: "files/../../etc/cron.d/x", body: "x"}), "is no name"},
		"a path that starts above":   {archive(t, index, findings, entry{name: "../x", body: "x"}), "is no name"},
		"a path from the root":       {archive(t, index, findings, entry{name: "/etc/passwd", body: "x"}), "is no name"},
		"a path for another system":  {archive(t, index, findings, entry{name: `files/..\..\x`, body: "x"}), "is no name"},
		"a file that nobody knows":   {archive(t, index, findings, entry{name: "run.sh", body: "x"}), "is no name"},
		"a link":                     {archive(t, index, findings, entry{name: "files/x", kind: tar.TypeSymlink, link: "/etc/passwd"}), "no plain file"},
		"a hard link":                {archive(t, index, findings, entry{name: "files/x", kind: tar.TypeLink, link: "bundle.json"}), "no plain file"},
		"a device":                   {archive(t, index, findings, entry{name: "files/x", kind: tar.TypeBlock}), "no plain file"},
		"a folder":                   {archive(t, index, findings, entry{name: "files/x/", kind: tar.TypeDir}), "no plain file"},
		"a name twice":               {archive(t, index, index, findings), "twice"},
		"more than can be, in parts": {archive(t, index, findings, entry{name: "files/x", size: 65 << 20}, entry{name: "files/y", size: 65 << 20}), "too large"},
		"too many files":             {archive(t, many...), "more than 20000 files"},
		"a name that is too long":    {archive(t, index, findings, entry{name: "files/" + strings.Repeat("x", 600)}), "is no name"},
		"no JSON":                    {archive(t, entry{name: "bundle.json", body: "{"}, findings), "bundle.json"},
		"of another form":            {archive(t, entry{name: "bundle.json", body: `{"format":2}`}, findings), "newer heteroflow"},
		"findings that are no JSON":  {archive(t, index, entry{name: "findings.json", body: "x"}), "findings.json"},
		"no findings":                {archive(t, index), "findings.json"},
		"a call of nothing":          {archive(t, entry{name: "bundle.json", body: `{"format":1,"calls":[{"argv":[]}]}`}, findings), "call 1"},
		"a call without an end":      {archive(t, entry{name: "bundle.json", body: `{"format":1,"calls":[{"argv":["x"]}]}`}, findings), "call 1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := bundle.Read(bytes.NewReader(tc.body))
			if !errors.Is(err, bundle.ErrRefused) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v does not say %q", err, tc.says)
			}
		})
	}
}

// A few bytes stand for a file that is one hole: what counts is how large it becomes.
func TestRead_RefusesHoles(t *testing.T) {
	t.Parallel()
	const hole = 100 << 20
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	for n := range 3 {
		size := strconv.Itoa(hole)
		holes := "1\n" + size + "\n0\n"
		pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
			record("GNU.sparse.name", fmt.Sprintf("files/%d", n)) + record("GNU.sparse.realsize", size)
		for _, block := range []string{header('x', len(pax)), pax, header(tar.TypeReg, 512), holes} {
			if _, err := zipped.Write(append([]byte(block), make([]byte, 512-len(block))...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := bundle.Read(&out); !errors.Is(err, bundle.ErrRefused) || !strings.Contains(err.Error(), "files/1") {
		t.Errorf("a bundle that unpacks to 300 MiB: %v", err)
	}
}

// header is one of package tar's plain headers, which its writer makes for no file with holes.
func header(kind byte, size int) string {
	h := append([]byte("x"), make([]byte, 99)...)
	h = append(h, fmt.Appendf(nil, "0000600\x000000000\x000000000\x00%011o\x0000000000000\x00        %c", size, kind)...)
	h = append(append(h, make([]byte, 100)...), "ustar\x0000"...)
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return string(h)
}

// record is one record of a PAX header: its length counts itself.
func record(key, value string) string {
	n := len(key) + len(value) + 3
	for {
		line := fmt.Sprintf("%d %s=%s\n", n, key, value)
		if len(line) == n {
			return line
		}
		n = len(line)
	}
}

// Whatever a file holds, reading it ends, and what is read can be played.
func FuzzRead(f *testing.F) {
	f.Add(packed(f, sample()))
	f.Add(archive(f, entry{name: "bundle.json", body: `{"format":1,"machine":{"folders":{"a":["b"]}}}`}, entry{name: "findings.json", body: "{}"}))
	f.Add([]byte("no bundle"))
	f.Fuzz(func(t *testing.T, body []byte) {
		b, err := bundle.Read(bytes.NewReader(body))
		if err != nil {
			if !errors.Is(err, bundle.ErrRefused) {
				t.Errorf("error %v", err)
			}
			return
		}
		files := b.Files()
		if _, err := files.PCIDevices(); err != nil {
			t.Logf("the machine's bus: %v", err)
		}
		files.Glob("dev/*")
		for _, c := range b.Calls.Calls {
			if _, err := b.Tools().Run(t.Context(), c.Argv[0], c.Argv[1:]...); err != nil {
				t.Logf("call: %v", err)
			}
		}
		again, err := bundle.Read(bytes.NewReader(packed(t, b)))
		if err == nil && len(again.Calls.Calls) != len(b.Calls.Calls) {
			t.Error("it is another one when it is written and read again")
		}
	})
}
