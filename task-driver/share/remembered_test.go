package share

import (
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestRemembered(t *testing.T) {
	t.Parallel()
	under := &counted{ledger: files{dir: t.TempDir()}}
	r := &remembered{ledger: under}
	e := Entry{Ask: sliceOf("task", "GPU-1", 1024, accel.Silver), Backend: "mps", State: Confirmed, Since: time.Unix(1e9, 0)}
	look := func(wantEntries, wantReads int) {
		t.Helper()
		if r.at != (time.Time{}) {
			r.at = time.Now().Add(time.Hour) // it serves for as long as the test may take
		}
		got, err := r.recent()
		if err != nil || len(got) != wantEntries || under.reads != wantReads {
			t.Errorf("%d entries, %v, after %d readings; want %d after %d", len(got), err, under.reads, wantEntries, wantReads)
		}
	}
	look(0, 1)
	look(0, 1)
	if err := r.put(e); err != nil {
		t.Fatal(err)
	}
	look(1, 2) // what this process writes is seen at once
	look(1, 2)
	if err := r.drop(e.Ask.ID); err != nil {
		t.Fatal(err)
	}
	look(0, 3)
	r.at = time.Now().Add(-rememberFor)
	if _, err := r.recent(); err != nil || under.reads != 4 {
		t.Errorf("an old answer served, %v", err)
	}
}

// counted counts how often all is read.
type counted struct {
	ledger
	reads int
}

func (c *counted) all() (map[ID]Entry, error) {
	c.reads++
	return c.ledger.all()
}
