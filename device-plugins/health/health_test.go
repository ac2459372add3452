package health

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// writer has the test binary add records to a history, as a process of its own.
const writer = "HETEROFLOW_TEST_HEALTH_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writer); dir != "" {
		if _, err := io.ReadAll(os.Stdin); err != nil { // all begin when it is closed
			panic(err)
		}
		for n := range writes {
			if err := Append(dir, numbered(strconv.Itoa(os.Getpid()), n)...); err != nil {
				panic(err)
			}
		}
		return
	}
	os.Exit(m.Run())
}

const writes = 600 // calls of each writer, of up to three records: they fill the history several times

func numbered(card string, call int) []Record {
	r := Record{At: noon, Kind: Unhealthy, Vendor: "nvidia", Card: card, Index: &call, Reason: strings.Repeat("x", call%mostText)}
	records := make([]Record, 1+call%3)
	for i := range records {
		records[i] = r
	}
	return records
}

// While a plugin is replaced by a newer one, two processes write. What the history still holds of each has no hole, every line
// is whole, records that were written together stand together, and the last record is there.
func TestAppend_TwoProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var writers []*exec.Cmd
	var starts []io.Closer
	for range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writer+"="+dir)
		cmd.Stderr = os.Stderr
		begin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		writers, starts = append(writers, cmd), append(starts, begin)
	}
	for _, begin := range starts {
		if err := begin.Close(); err != nil {
			t.Error(err)
		}
	}
	ended := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { // a reader meets no hole either, at any moment
		for {
			select {
			case <-ended:
				return
			default:
				wantWhole(t, dir, false)
			}
		}
	})
	for _, cmd := range writers {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	close(ended)
	reading.Wait()
	last := wantWhole(t, dir, true)
	for card, call := range last {
		if call != writes-1 {
			t.Errorf("the last call of %s is %d, want %d", card, call, writes-1)
		}
	}
	if len(last) == 0 {
		t.Error("nothing is left")
	}
}

// wantWhole checks a history of numbered records, and gives the last call of each card. While it is written, the end of a
// write may not be there yet.
func wantWhole(t *testing.T, dir string, written bool) map[string]int {
	t.Helper()
	text, err := Text(dir)
	if err != nil {
		t.Error(err)
	}
	records, last, count := parse(text), map[string]int{}, map[string]int{}
	if lines := bytes.Count(text, []byte("\n")); written && lines != len(records) {
		t.Errorf("%d lines are %d records", lines, len(records))
	}
	ended := func(card string) {
		if call, want := last[card], 1+last[card]%3; count[card] != want {
			t.Errorf("of call %d of %s there are %d records, want %d", call, card, count[card], want)
		}
	}
	for _, r := range records {
		before, seen := last[r.Card]
		if seen && *r.Index == before {
			count[r.Card]++
			continue
		}
		if seen {
			ended(r.Card)
		}
		if seen && *r.Index != before+1 {
			t.Errorf("call %d of %s follows on %d", *r.Index, r.Card, before)
		}
		last[r.Card], count[r.Card] = *r.Index, 1
	}
	for card := range last {
		if written {
			ended(card)
		}
	}
	return last
}

// Of several that find the file full at once, one shortens the history, once.
func TestAppend_ManyFindItFull(t *testing.T) {
	t.Parallel()
	const at, rounds, lines = 8, 20, mostBytes / 2 / 64
	line := `{"at":"2026-01-01T12:00:00Z","kind":"healthy","card":"GPU-old"}` + "\n"
	for range rounds {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), []byte(strings.Repeat(line, lines)), 0o644); err != nil {
			t.Fatal(err)
		}
		var begin, writers sync.WaitGroup
		begin.Add(at)
		for range at {
			writers.Go(func() {
				begin.Done()
				begin.Wait()
				if err := Append(dir, Record{At: noon, Kind: Unhealthy, Card: "GPU-new"}); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if got, err := Read(dir); err != nil || len(got) != lines+at {
			t.Fatalf("%d records, want %d; %v", len(got), lines+at, err)
		}
	}
}

func TestAppend_IsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	size := func() (sum int64) {
		for _, name := range []string{File, olderFile} {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
				sum += info.Size()
			}
		}
		return sum
	}
	old := strings.Repeat(`{"at":"2026-01-01T12:00:00Z","kind":"healthy","card":"GPU-old"}`+"\n", mostBytes/64/2)
	if err := os.WriteFile(filepath.Join(dir, File), []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	for n := range 2000 {
		r := Record{At: noon, Kind: Unhealthy, Card: "GPU-new", Index: &n, Reason: strings.Repeat("过热", 1000)}
		if err := Append(dir, r); err != nil {
			t.Fatal(err)
		}
		if size() > mostBytes+2*(mostText+200) {
			t.Fatalf("after %d records: %d bytes", n+1, size())
		}
		if n > 0 && n < 1999 {
			continue
		}
		got, err := Read(dir)
		if err != nil || len(got) < mostBytes/2/(mostText+200) || *got[len(got)-1].Index != n || len(got[len(got)-1].Reason) > mostText+3 {
			t.Errorf("%d records, %v", len(got), err)
		}
	}
}

// Of a history that cannot be shortened nothing is lost, and it is told.
func TestAppend_CannotShorten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := `{"at":"2026-01-01T12:00:00Z","kind":"healthy","card":"GPU-old"}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, File), []byte(strings.Repeat(line, mostBytes/64)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, lockFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Append(dir, Record{At: noon, Kind: Unhealthy, Card: "GPU-new"}); err == nil {
		t.Error("nobody learns that it grows")
	}
	if got, err := Read(dir); err != nil || len(got) < 2 || got[len(got)-1].Card != "GPU-new" {
		t.Errorf("%d records, %v", len(got), err)
	}
}

// A line that an editor or a full disk left without its end does not swallow the next one.
func TestAppend_AfterHalfALine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{File, olderFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"kind":"healthy","card":"a"}`+"\n"+`{"kind":"hea`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Append(dir, Record{At: noon, Kind: Unhealthy, Card: "b"}); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || len(got) != 3 || got[2].Card != "b" {
		t.Errorf("%v, %v", got, err)
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

// A process that looks while another one writes ends a line that ends itself: the empty line between them is no line of the
// history.
func TestText_HasNoEmptyLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{olderFile: "\na\n\n\nb", File: "\n\nc\n\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Text(dir); err != nil || string(got) != "a\nb\nc\n" {
		t.Errorf("%q, %v", got, err)
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
