package docker

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A daemon that reads again from any place, at any moment, makes no piece come twice and loses none.
func TestProgress_EachPieceOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type piece struct {
			stream byte
			at     time.Time
			id     int
		}
		begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		var all []piece
		clock := begin
		for id := range rapid.IntRange(1, 40).Draw(t, "pieces") {
			// Pieces of one line have one time; streams are out of step by less than the overlap.
			if rapid.IntRange(0, 3).Draw(t, "step") > 0 {
				clock = clock.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond)
			}
			all = append(all, piece{byte(rapid.IntRange(1, 2).Draw(t, "stream")), clock, id})
		}
		now := func() time.Time { return clock.Add(time.Second) }
		p := newProgress(time.Time{})
		var got []int
		for pos := 0; pos < len(all); {
			if rapid.IntRange(0, 9).Draw(t, "again") == 0 {
				if rapid.Bool().Draw(t, "opened anew") {
					since := p.since(now())
					p.again()
					pos = slices.IndexFunc(all, func(q piece) bool { return !q.at.Before(since) })
				} else { // a file is read from a place before, a stream's pieces of one time together
					pos = rapid.IntRange(0, pos).Draw(t, "from")
					for pos > 0 && all[pos-1].at.Equal(all[pos].at) {
						pos--
					}
					p.again()
				}
				continue
			}
			if q := all[pos]; p.isNew(q.stream, q.at, now) {
				got = append(got, q.id)
			}
			pos++
		}
		if len(got) != len(all) || !slices.IsSorted(got) {
			t.Fatalf("%d pieces, written %v", len(all), got)
		}
	})
}

func TestProgress_ClockSetBack(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }
	p := newProgress(time.Time{})
	if !p.isNew(1, now, clock) {
		t.Fatal("the first piece is new")
	}
	now = now.Add(-time.Hour)
	for i := range 3 {
		if at := now.Add(time.Duration(i)); !p.isNew(1, at, clock) || p.isNew(1, at.Add(-time.Minute), func() time.Time { return now.Add(time.Second) }) {
			t.Errorf("piece %d after the clock was set back", i)
		}
	}
	if since := p.since(now.Add(-time.Hour)); since.After(now) {
		t.Errorf("since = %v waits for the clock", since)
	}
	resumed := newProgress(now)
	if resumed.isNew(2, now, func() time.Time { return now.Add(time.Second) }) || !resumed.isNew(2, now.Add(1), clock) {
		t.Error("a resumed reader begins behind the mark")
	}
}
