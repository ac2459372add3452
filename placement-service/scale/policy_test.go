package scale

import (
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

func groupWith(t *testing.T, text string) Tree {
	t.Helper()
	var group Tree
	if err := nomadapi.DecodeTree([]byte(text), &group); err != nil {
		t.Fatal(err)
	}
	return group
}

func TestReadPolicy(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no scaling":      `{"Count":1}`,
		"no policy":       `{"Scaling":{"Min":1,"Max":4,"Policy":null}}`,
		"another's":       `{"Scaling":{"Min":1,"Max":4,"Policy":{"cooldown":"1m","check":[{"x":1}]}}}`,
		"switched off":    `{"Scaling":{"Min":1,"Max":4,"Enabled":false,"Policy":{"heteroflow":[{}]}}}`,
		"nothing at all":  `{}`,
		"an empty policy": `{"Scaling":{"Max":4,"Policy":{}}}`,
	} {
		if p, err := ReadPolicy(groupWith(t, text)); p != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	p, err := ReadPolicy(groupWith(t, `{"Scaling":{"Min":1,"Max":4,"Enabled":true,"Policy":{"heteroflow":[{"tokens":60000,"cache":0.8,"first_token":"2s","down_after":"2m","idle_after":"1h","dry_run":true,"schedule":["Mon-Fri 09:00-18:00 Asia/Shanghai min=4"]}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if p.Min != 1 || p.Max != 4 || p.Requests != 0 || p.Tokens != 60000 || p.Cache != 0.8 || p.FirstToken != 2*time.Second ||
		p.DownAfter != 2*time.Minute || p.IdleAfter != time.Hour || !p.DryRun || len(p.Schedule) != 1 {
		t.Errorf("%+v", p)
	}
	p, err = ReadPolicy(groupWith(t, `{"Scaling":{"Max":4,"Policy":{"heteroflow":{"schedule":"* 00:00-24:00 UTC max=2"}}}}`))
	if err != nil || p.Requests != defaultRequests || p.DownAfter != defaultDownAfter || p.Min != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, most, by := p.bounds(monday); most != 2 || by == nil {
		t.Errorf("%d, %v", most, by)
	}
	for text, says := range map[string]string{
		`{"requests":0}`:      "heteroflow.requests: write how many requests",
		`{"requests":"16"}`:   "such as 16",
		`{"tokens":-1}`:       "such as 60000",
		`{"cache":80}`:        "above 0 and at most 1",
		`{"first_token":2}`:   `write a time from "1ms"`,
		`{"down_after":"1s"}`: `write a time from "1m0s" to "24h0m0s"`,
		`{"dry_run":"yes"}`:   "write true or false",
		`{"target":1}`:        "it is not known: write requests, tokens",
		`{"schedule":[1]}`:    "Asia/Shanghai",
		`{"schedule":["Mon 09:00-18:00 UTC min=5"]}`:       "more than scaling.max, which is 4",
		`{"schedule":["Mon 09:00-18:00 UTC max=0"]}`:       "less than scaling.min, which is 1",
		`{"schedule":["Mon 9-18 UTC min=2"]}`:              `"9" is no time of day`,
		`{"schedule":["Mon 09:00-18:00 Mars min=2"]}`:      `zone "Mars" is not known`,
		`{"schedule":["Moon 09:00-18:00 UTC min=2"]}`:      `"Moon" is no day`,
		`{"schedule":["Mon 09:00-18:00 UTC min=2 min=1"]}`: `"min=1" is no bound`,
		`{"schedule":["Mon 09:00-18:00 Local min=2"]}`:     "another zone on each machine",
	} {
		_, err := ReadPolicy(groupWith(t, `{"Scaling":{"Min":1,"Max":4,"Policy":{"heteroflow":[`+text+`]}}}`))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, says := range map[string]string{
		`{"Scaling":{"Policy":{"heteroflow":[{}]}}}`:                 "scaling.max: write",
		`{"Scaling":{"Min":5,"Max":4,"Policy":{"heteroflow":[{}]}}}`: "min 5 is above max 4",
		`{"Scaling":{"Max":4,"Policy":{"heteroflow":[{},{}]}}}`:      "write one block",
		`{"Scaling":{"Max":4,"Policy":{"heteroflow":true}}}`:         "write one block",
	} {
		if _, err := ReadPolicy(groupWith(t, text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// PW23: bounds by the hours of a zone, over the days on which its clocks are set.
func TestPW23_ScheduleOverZonesAndClockChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		window string
		open   []string
		shut   []string
	}{
		"working hours in Shanghai": {
			"Mon-Fri 09:00-18:00 Asia/Shanghai min=4",
			[]string{"2026-03-02T01:00:00Z", "2026-03-02T09:59:59Z", "2026-07-03T01:00:00Z"},
			[]string{"2026-03-02T00:59:59Z", "2026-03-02T10:00:00Z", "2026-03-07T02:00:00Z", "2026-03-01T17:00:00Z"},
		},
		"a zone with summer time keeps its wall clock": {
			"* 09:00-18:00 Europe/Berlin min=4",
			[]string{"2026-01-15T08:00:00Z", "2026-07-15T07:00:00Z", "2026-07-15T15:59:00Z"},
			[]string{"2026-01-15T07:59:00Z", "2026-07-15T06:59:00Z", "2026-07-15T16:00:00Z", "2026-01-15T17:00:00Z"},
		},
		"an hour that is left out": { // 02:00 is followed by 03:00 on 8 March
			"Sun 02:00-03:00 America/New_York min=4",
			[]string{"2026-03-01T07:30:00Z"},
			[]string{"2026-03-08T06:59:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"},
		},
		"an hour that comes twice": { // 01:00 to 02:00, on 1 November
			"Sun 01:00-02:00 America/New_York min=4",
			[]string{"2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"},
			[]string{"2026-11-01T04:59:00Z", "2026-11-01T07:00:00Z"},
		},
		"over midnight, from the day on which it begins": {
			"Fri 22:00-06:00 UTC max=1",
			[]string{"2026-03-06T22:00:00Z", "2026-03-07T05:59:00Z"},
			[]string{"2026-03-06T05:00:00Z", "2026-03-07T06:00:00Z", "2026-03-07T22:00:00Z"},
		},
		"over the end of the week": {
			"Sat-Sun 22:00-06:00 UTC max=1",
			[]string{"2026-03-07T23:00:00Z", "2026-03-08T23:00:00Z", "2026-03-09T05:00:00Z"},
			[]string{"2026-03-07T05:00:00Z", "2026-03-09T22:00:00Z"},
		},
		"days in a list, whole days": {
			"sat,Sun,Wed 00:00-24:00 UTC max=1",
			[]string{"2026-03-07T00:00:00Z", "2026-03-08T23:59:00Z", "2026-03-04T12:00:00Z"},
			[]string{"2026-03-06T23:59:00Z", "2026-03-09T00:00:00Z"},
		},
		"from Friday to Monday": {
			"Fri-Mon 00:00-24:00 UTC max=1",
			[]string{"2026-03-06T00:00:00Z", "2026-03-09T23:59:00Z"},
			[]string{"2026-03-05T23:59:00Z", "2026-03-10T00:00:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := ParseWindow(c.window)
			if err != nil {
				t.Fatal(err)
			}
			for want, moments := range map[bool][]string{true: c.open, false: c.shut} {
				for _, text := range moments {
					at, err := time.Parse(time.RFC3339, text)
					if err != nil {
						t.Fatal(err)
					}
					if w.Holds(at) != want {
						t.Errorf("%s: open is %v", text, !want)
					}
				}
			}
		})
	}
}

// FuzzParseWindow: whatever is written is understood in one way or refused with what to write.
func FuzzParseWindow(f *testing.F) {
	for _, seed := range []string{"Mon-Fri 09:00-18:00 Asia/Shanghai min=4", "* 22:00-06:00 UTC max=1 min=0", "Sat,Sun 00:00-24:00 UTC max=2", "Mon 9-18 UTC min=x", "Mon 24:00-24:00 UTC min=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWindow(text)
		if err != nil {
			if !strings.Contains(err.Error(), "write it as") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		again, err := ParseWindow(w.String())
		if err != nil || again.String() != w.String() || again.days != w.days || again.from != w.from || again.to != w.to {
			t.Errorf("%q becomes %q: %v", text, w, err)
		}
		held := false
		for at := monday.Add(-8 * 24 * time.Hour); at.Before(monday.Add(8 * 24 * time.Hour)); at = at.Add(time.Minute) {
			held = held || w.Holds(at)
		}
		if !held {
			t.Errorf("%q never holds", text)
		}
	})
}
