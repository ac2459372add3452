package meter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// sink is a store that can be away. It tells of every call.
type sink struct {
	mu    sync.Mutex
	rows  map[string]int
	away  bool
	calls chan bool // whether the rows were taken
}

func newSink(away bool) *sink {
	return &sink{rows: map[string]int{}, away: away, calls: make(chan bool, 10_000)}
}

func (s *sink) AddUsage(_ context.Context, rows []store.Usage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls <- !s.away
	if s.away {
		return errors.New("store is away")
	}
	for _, r := range rows {
		s.rows[r.ID]++
	}
	return nil
}

func (s *sink) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

func (s *sink) once(t *testing.T, want int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rows) != want {
		t.Errorf("%d rows, want %d", len(s.rows), want)
	}
	for id, times := range s.rows {
		if times != 1 {
			t.Errorf("row %s was written %d times", id, times)
		}
	}
}

func spool(t *testing.T, max int64) (*Spool, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "spool")
	s, err := OpenSpool(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func inSpool(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestMeter_StoreAwayForAMinute(t *testing.T) {
	t.Parallel()
	for name, spooled := range map[string]bool{"with a spool": true, "in memory": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, now := newSink(true), clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			var keep *Spool
			dir := ""
			if spooled {
				keep, dir = spool(t, 0)
			}
			m := New(s, keep, now, hclog.NewNullLogger(), func(n int) { t.Errorf("%d rows were given up", n) })
			st := state{pause: batchEvery, replay: spooled}
			const n = 3000
			for i := range n {
				m.Record(store.Usage{ID: fmt.Sprint(i)})
				if i%10 == 0 {
					now.Advance(batchEvery)
					m.step(t.Context(), &st)
				}
			}
			if tries := len(s.calls); tries > 20 {
				t.Errorf("a store that was away for a minute was tried %d times", tries)
			}
			if held := m.Held(); spooled && held > 10 || !spooled && held != n {
				t.Errorf("%d rows are in memory", held)
			}
			s.set(false)
			now.Advance(longestTry)
			m.step(t.Context(), &st)
			s.once(t, n)
			if m.Held() != 0 || spooled && len(inSpool(t, dir)) != 0 {
				t.Errorf("%d rows and %v are left", m.Held(), inSpool(t, dir))
			}
		})
	}
}

func TestMeter_EndsWithNothingLost(t *testing.T) {
	t.Parallel()
	s := newSink(true)
	keep, dir := spool(t, 0)
	run := func() {
		m := New(s, keep, clock.System(), hclog.NewNullLogger(), nil)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		for i := range 700 {
			m.Record(store.Usage{ID: fmt.Sprint("first-", i)})
		}
		go func() { done <- m.Run(ctx) }()
		<-s.calls
		m.Record(store.Usage{ID: "last"})
		cancel()
		<-done
	}
	run()
	if s.count() != 0 || len(inSpool(t, dir)) == 0 {
		t.Fatalf("%d rows written; in the spool: %v", s.count(), inSpool(t, dir))
	}
	s.set(false)
	m := New(s, keep, clock.System(), hclog.NewNullLogger(), nil) // the next start
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	for s.count() < 701 {
		<-s.calls
	}
	cancel()
	<-done
	s.once(t, 701)
	if left := inSpool(t, dir); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

func TestMeter_SpoolThatIsFull(t *testing.T) {
	t.Parallel()
	s := newSink(true)
	keep, dir := spool(t, 10_000)
	m := New(s, keep, clock.NewFake(time.Unix(0, 0)), hclog.NewNullLogger(), nil)
	st := state{pause: batchEvery}
	for i := range 100 {
		m.Record(store.Usage{ID: fmt.Sprint(i)})
		m.step(t.Context(), &st)
	}
	size := int64(0)
	for _, name := range inSpool(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 10_000 || size == 0 || m.Held() == 0 {
		t.Errorf("%d bytes on disk, %d rows in memory", size, m.Held())
	}
}

func TestSpool_KeepsEverythingOfARow(t *testing.T) {
	t.Parallel()
	n := int64(7)
	want := store.Usage{
		ID: "a", Tenant: "t", KeyID: "k", EndpointID: "e", Model: "\x00<名>\n", ServedModel: "s", Service: "x", Backend: "b", Operation: "o",
		End: store.EndDone, Stream: true, PromptTokens: &n, CompletionTokens: nil, CachedTokens: &n, Estimated: true, Chunks: 3, Status: 200, Tries: 2,
		Tried: `[{"backend":"a"}]`, StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC), Duration: time.Second, FirstByte: time.Millisecond,
	}
	keep, dir := spool(t, 0)
	if err := keep.Put([]store.Usage{want}); err != nil {
		t.Fatal(err)
	}
	got, err := readSpool(filepath.Join(dir, inSpool(t, dir)[0]))
	if diff := cmp.Diff([]store.Usage{want}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestSpool_DamagedFileIsSetAside(t *testing.T) {
	t.Parallel()
	keep, dir := spool(t, 0)
	if err := os.WriteFile(filepath.Join(dir, "usage-1-0.jsonl"), []byte("{\"ID\":\"a\"}\n{\"ID\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keep.Put([]store.Usage{{ID: "b"}}); err != nil {
		t.Fatal(err)
	}
	s := newSink(false)
	if _, err := keep.Replay(t.Context(), s); err == nil {
		t.Error("a damaged file is no error")
	}
	if n, err := keep.Replay(t.Context(), s); n != 1 || err != nil {
		t.Errorf("the good one: %d, %v", n, err)
	}
	if left := inSpool(t, dir); len(left) != 1 || left[0] != "usage-1-0.jsonl.bad" {
		t.Errorf("left: %v", left)
	}
}

func TestOpenSpool_FolderThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSpool(filepath.Join(file, "spool"), 0); err == nil {
		t.Error("no error")
	}
}

// crashEnv tells the test binary to be the gateway that is killed; it names the folder.
const crashEnv = "HETEROFLOW_TEST_CRASH_IN_METER"

// TestMeter_KilledBetweenWrites: with kill -9 at any moment nothing that was on disk is lost, and nothing counts twice:
// neither when it hits between the store's commit and the end of the file, nor in the middle of a file.
func TestMeter_KilledBetweenWrites(t *testing.T) {
	if dir := os.Getenv(crashEnv); dir != "" {
		crash(dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	var told strings.Builder
	for range 3 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMeter_KilledBetweenWrites$")
		child.Env = append(os.Environ(), crashEnv+"="+dir)
		out, err := child.Output()
		var died *exec.ExitError
		if !errors.As(err, &died) || died.Exited() {
			t.Fatalf("the child was to be killed: %v\n%s", err, out)
		}
		told.Write(out)
	}
	if err := os.WriteFile(filepath.Join(dir, "spool", spoolPrefix+"half"+spoolSuffix+".tmp"), []byte(`{"ID":"ha`), 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "state.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	keep, err := OpenSpool(filepath.Join(dir, "spool"), 0)
	if err != nil {
		t.Fatal(err)
	}
	for {
		n, err := keep.Replay(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	rows, _, err := db.ListUsage(t.Context(), "", time.Time{}, time.Time{}, store.Page{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, r := range rows {
		there[r.ID] = true
	}
	kept := strings.Fields(told.String())
	for _, id := range kept {
		if !there[id] {
			t.Errorf("row %s was on disk and is lost", id)
		}
	}
	sums, err := db.SumUsage(t.Context(), store.UsageQuery{})
	if err != nil || len(kept) < 60 || len(sums) != 1 || sums[0].Requests != int64(len(rows)) || sums[0].PromptTokens != int64(len(rows)) {
		t.Errorf("%d rows kept, %d there: %+v, %v", len(kept), len(rows), sums, err)
	}
}

// crash spools rows and tells which are on disk, replays a file into the store, and dies before it is deleted.
func crash(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	db, err := store.Open(context.Background(), filepath.Join(dir, "state.db"), nil)
	fail(err)
	keep, err := OpenSpool(filepath.Join(dir, "spool"), 0)
	fail(err)
	one := int64(1)
	for range 10 {
		rows := []store.Usage{}
		for range 3 {
			rows = append(rows, store.Usage{ID: store.NewID(), StartedAt: time.Now(), Model: "m", PromptTokens: &one, CompletionTokens: &one})
		}
		fail(keep.Put(rows))
		for _, r := range rows {
			fmt.Println(r.ID)
		}
	}
	_, err = keep.Replay(context.Background(), deadly{db})
	fail(err)
	os.Exit(4)
}

// deadly dies once the rows are committed.
type deadly struct{ db *store.Store }

func (d deadly) AddUsage(ctx context.Context, rows []store.Usage) error {
	if err := d.db.AddUsage(ctx, rows); err != nil {
		return err
	}
	me, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = me.Kill()
	}
	if err == nil {
		select {}
	}
	return err
}
