package mask_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
)

// places are how private details stand in texts: a shape of the value, and the text around it.
var places = []struct {
	kind, shape, text string
}{
	{"serial", `[1-9A-E][0-9A-Z]{8,15}`, "        Serial Number                  : %s\n"},
	{"serial", `[1-9][0-9]{9,14}`, "<serial>%s</serial>\n"},
	{"serial", `[1-9][0-9]{9,14}`, `{"card0": {"Serial Number": "%s", "VRAM": "34342961152"}}` + "\n"},
	{"serial", `[1-9][0-9]{12}`, "│Index  Name Freq.  Memory-Usage   SN      │\n│Card1  S30  700MHz  111MiB/61440MiB %s│\n"},
	{"serial", `[A-Z]{2}[0-9]{8,12}`, "index, serial, name\n0, %s, A40\n"},
	{"serial", `[1-9a-f][0-9a-f]{14}[a-f]`, "ASIC Serial: 0x%s\n"},
	{"unique", `[1-9][0-9]{16}`, "unique_id %s\n"},
	{"uuid", `[1-9a-f][0-9a-f]{7}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "GPU 0: A40 (UUID: GPU-%s)\n"},
	{"uuid", `[1-9a-f][0-9a-f]{7}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "MIG-GPU-%s/1/0\n"},
	{"ip", `10\.[1-9][0-9]\.[1-9][0-9]\.[1-9][0-9]`, "connected to %s port 80\n"},
	{"ip", `fe80::[1-9a-f][0-9a-f]{3}:[1-9a-f][0-9a-f]{3}`, "address %s here\n"},
	{"mac", `(0a|be):([0-9a-f]{2}:){4}[0-9a-f][1-9a-f]`, "link/ether %s brd\n"},
	{"guid", `[1-9a-f][0-9a-f]{3}:([0-9a-f]{4}:){2}[0-9a-f]{3}[1-9a-f]`, "node_guid %s\n"},
	{"host", `[a-z]{6}-[0-9]{3}q`, "Hostname: %s\n"},
	{"host", `[a-z]{5}q\.internal\.example`, "see https://%s:8443/x?y=z\n"},
	{"user", `[a-z]{7}q`, "loaded from /home/%s/.config\n"},
	{"user", `[a-z]{7}q`, "%s@build.example wrote\n"},
	{"token", `[a-zA-Z0-9]{20,40}`, "HETEROFLOW_TOKEN=%s\n"},
	{"token", `[a-zA-Z0-9]{20,40}`, "Authorization: Basic %s\n"},
	{"token", `[a-zA-Z0-9]{20,40}`, "Authorization: Bearer %s\n"},
	{"token", `[a-zA-Z0-9]{10,20}`, `"password": "%s"` + "\n"},
	{"token", `eyJ[a-zA-Z0-9]{20}\.[a-zA-Z0-9]{20}\.[a-zA-Z0-9]{20}`, "got %s back\n"},
	{"token", `hf-tenant-[a-z0-9]{24}`, "key %s is known\n"},
	{"token", `[a-zA-Z0-9]{12}`, "postgres://heteroflow:%s@db/x\n"},
	{"token", `[a-zA-Z0-9]{12}`, "started with --password %s -v\n"},
	{"token", `[a-zA-Z0-9]{12}`, "  -api-token %s\n"},
	{"token", `[a-zA-Z0-9/]{40}`, "AWS_SECRET_ACCESS_KEY=%s\n"},
	{"token", `[a-zA-Z0-9]{6} [a-zA-Z0-9]{6}`, `{"password": "%s", "n": 1}` + "\n"},
	{"token", `[a-zA-Z0-9]{20}`, "Set-Cookie: session=%s; Path=/\n"},
	{"token", `github_pat_[A-Za-z0-9_]{30}`, "with %s\n"},
	{"token", `hvs\.[A-Za-z0-9_-]{30}q`, "with %s\n"},
	{"token", `AIza[A-Za-z0-9_-]{34}q`, "with %s\n"},
	{"token", `[A-Za-z0-9+/]{60}\n[A-Za-z0-9+/]{60}`, "-----BEGIN RSA PRIVATE KEY-----\n%s\n-----END RSA PRIVATE KEY-----\n"},
	{"ip", `10\.[1-9][0-9]\.[1-9][0-9]\.[1-9][0-9]`, "--------\n%s\n"},
	{"ip", `192\.168\.[1-9][0-9]\.[1-9][0-9]`, "--------\n- %s\n"},
	{"host", `[a-z]{6}q\.[a-z]{6}q\.(?:com|cn|internal|local)`, "connecting to license server %s:27000\n"},
	{"host", `[a-z]{6}-[0-9]{3}q`, "hostname %s\n"},
	{"command", `[a-z]{6}q\.py --lr [0-9]{4}`, "<process_name>%s</process_name>\n"},
	{"command", `[a-z]{6}q\.py --lr [0-9]{4}`, "Process Name : %s\n"},
}

// No private detail survives, wherever it stands, alone or among others, and however often.
func TestText_NoSecretSurvives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		var secrets []string
		for range rapid.IntRange(1, 12).Draw(t, "how many") {
			p := rapid.SampledFrom(places).Draw(t, "place")
			value := rapid.StringMatching(p.shape).Draw(t, "value")
			secrets = append(secrets, value)
			for range rapid.IntRange(1, 2).Draw(t, "how often") {
				fmt.Fprintf(&text, p.text, value)
			}
			text.WriteString(rapid.SampledFrom([]string{"", "| 0  A40   00000000:01:00.0 Off |  100MiB / 46068MiB |\n", "\n", "Driver Version: 550.54.15   CUDA Version: 12.4\n"}).Draw(t, "noise"))
		}
		m := mask.New([]byte("a key"))
		m.LearnFrom(text.String())
		got := m.Text(text.String())
		for _, s := range secrets {
			if strings.Contains(strings.ToLower(got), strings.ToLower(s)) {
				t.Fatalf("%q survives in\n%s", s, got)
			}
		}
		if again := m.Text(text.String()); again != got {
			t.Fatal("the same text is masked in two ways")
		}
	})
}

// What was learned is masked wherever it stands, also inside of a longer word.
func TestText_LearnedSecrets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[1-9][0-9A-Z]{9,20}`).Draw(t, "value")
		around := rapid.SampledFrom([]string{"%s", "GPU-%s", "x_%s_y", "[%s]", "%s-0", "SN%sX"}).Draw(t, "around")
		m := mask.New([]byte("a key"))
		m.Learn(mask.Secret{Kind: mask.Serial, Value: value})
		text := fmt.Sprintf(around, value)
		got := m.Text(text)
		if strings.Contains(got, value) || len(got) != len(text) {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

// A pseudonym has the shape of its value, is the same everywhere, and another one in another bundle.
func TestText_Pseudonyms(t *testing.T) {
	t.Parallel()
	const text = `UUID: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c
unique_id 4406362170380124671
ASIC 0x3d268b0c4d3a01ff and 3D268B0C4D3A01FF and 0x003d268b0c4d3a01ff
serial: PX01234567A
`
	m, other := mask.New([]byte("a")), mask.New([]byte("b"))
	m.LearnFrom(text)
	other.LearnFrom(text)
	got := m.Text(text)
	shape := regexp.MustCompile(`^UUID: GPU-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\nunique_id (\d+)\nASIC 0x([0-9a-f]{16}) and ([0-9A-F]{16}) and 0x00([0-9a-f]{16})\nserial: [A-Z]{2}0[1-9]{7}[A-Z]\n$`)
	parts := shape.FindStringSubmatch(got)
	if parts == nil {
		t.Fatalf("masked:\n%s", got)
	}
	var n uint64
	if _, err := fmt.Sscan(parts[2], &n); err != nil || fmt.Sprintf("%x", n) != parts[3] || strings.ToLower(parts[4]) != parts[3] || parts[5] != parts[3] {
		t.Errorf("one number has several pseudonyms: %q, %v", parts, err)
	}
	if other.Text(text) == got {
		t.Error("two bundles have the same pseudonyms")
	}
	if c := m.Counts(); c[mask.UUID] != 1 || c[mask.Serial] < 2 {
		t.Errorf("counts %v", c)
	}
}

// What is no private detail stays as it is, or the texts could not be read any more.
func TestText_WhatStays(t *testing.T) {
	t.Parallel()
	m := mask.New([]byte("a key"))
	m.Keep("4.31.0.1")
	m.Learn(
		mask.Secret{Kind: mask.Host, Value: "gpu"}, mask.Secret{Kind: mask.User, Value: "root"}, mask.Secret{Kind: mask.Serial, Value: "N/A"},
		mask.Secret{Kind: mask.Serial, Value: "0000000000000000"}, mask.Secret{Kind: mask.Serial, Value: "12"},
	)
	for _, text := range []string{
		"VRAM Total Memory (B): 309220868096", "GPU 00000000:01:00.0 Off", "0000:c1:00.0", "npu-smi 25.5.2.1   Version: 25.5.2.1",
		"| 4.31.0.1 |", "1.2.0.301", "12:34:56", "0x0000000000000000", "00000000-0000-0000-0000-000000000000", "Serial Number : N/A",
		"http", "gpu 0: A100", "root", "127.0.0.1", "::1", "0xffffffffffffffff", "MIG 1g.10gb Device 0:", "12 MiB", "Driver Version: 535.183.01",
		"size_in_bytes 206141652992", "0x10de",
	} {
		m.LearnFrom(text)
		if got := m.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestText_Processes(t *testing.T) {
	t.Parallel()
	m := mask.New([]byte("a key"))
	m.Learn(mask.Secret{Kind: mask.Command, Value: "Memory", With: "4711"})
	const text = "| GPU  PID   Process name   GPU Memory |\n|  0   4711  Memory   100MiB |\n"
	if got, want := m.Text(text), "| GPU  PID   Process name   GPU Memory |\n|  0   4711  xxxxxx   100MiB |\n"; got != want {
		t.Errorf("got %q", got)
	}
}

// The recorded outputs of all brands are masked without their serial numbers and UUIDs, and nothing else of them changes length.
func TestText_RecordedOutputs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../*/testdata/*.*")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	uuid := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(file) == ".md" || filepath.Ext(file) == ".hcl" {
			continue
		}
		m := mask.New([]byte("a key"))
		m.LearnFrom(string(body))
		got := m.Text(string(body))
		if strings.Count(got, "\n") != strings.Count(string(body), "\n") {
			t.Errorf("%s has other lines", file)
		}
		for _, id := range uuid.FindAllString(string(body), -1) {
			if strings.Trim(id, "0-") != "" && strings.Contains(got, id) {
				t.Errorf("%s keeps %s", file, id)
			}
		}
	}
}

// Whatever a text is, masking it ends, and is the same again.
func FuzzText(f *testing.F) {
	for _, p := range places {
		f.Add(fmt.Sprintf(p.text, "value12345678ab"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		m := mask.New([]byte("a key"))
		m.LearnFrom(text)
		first := m.Text(text)
		if again := m.Text(text); again != first {
			t.Error("two maskings of one text differ")
		}
	})
}
