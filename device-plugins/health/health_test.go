package health

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestAppend_ReadGivesItBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	if got, err := Read(dir); err != nil || got != nil {
		t.Fatalf("a history that is not there: %v, %v", got, err)
	}
	index := 0
	want := []Record{
		{At: noon, Kind: Unhealthy, Vendor: "nvidia", Model: "A40", Card: "GPU-a", Index: &index, Reason: "lost"},
		{At: noon.Add(time.Minute), Kind: Healthy, Vendor: "nvidia", Model: "A40", Card: "GPU-a"},
	}
	for _, r := range want {
		if err := Append(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(dir)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAppend_IsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := strings.Repeat(`{"at":"2026-01-01T12:00:00Z","kind":"healthy","card":"GPU-old"}`+"\n", mostBytes/64)
	if err := os.WriteFile(filepath.Join(dir, File), []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Append(dir, Record{At: noon, Kind: Unhealthy, Card: "GPU-new", Reason: strings.Repeat("过热", 1000)}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, File))
	if err != nil || info.Size() > mostBytes {
		t.Fatalf("%v bytes, %v", info, err)
	}
	got, err := Read(dir)
	if err != nil || len(got) < 1000 || got[len(got)-1].Card != "GPU-new" || len(got[len(got)-1].Reason) > mostText+3 {
		t.Errorf("%d records, %v", len(got), err)
	}
}

func TestRead_LeavesOutWhatIsNoRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "\n{\"kind\":\"healthy\",\"card\":\"a\"}\nhello\n{}\n{\"kind\":\"healthy\",\"card\":\"b\"}\n{\"kind\":\"hea"
	if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || len(got) != 2 || got[1].Card != "b" {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"at":"2026-01-01T12:00:00Z","kind":"healthy","card":"GPU-a"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, r := range parse(body) {
			if r.Card == "" || r.Kind == "" {
				t.Errorf("record %+v", r)
			}
		}
	})
}
