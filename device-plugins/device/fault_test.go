package device

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// talker is a bench that tells of events.
type talker struct {
	*bench
	events []Event
}

func (b *talker) Events() []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	told := append([]Event{}, b.events...)
	b.events = nil
	return told
}

// listen makes a plugin over two cards, on one of which a task runs, and what it logs.
func listen(t *testing.T, change func(*Config)) (*Plugin, *talker, *bytes.Buffer) {
	t.Helper()
	b := &talker{bench: &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")}}}
	var log bytes.Buffer
	p := New(func(Config) ([]Detector, error) { return []Detector{b}, nil }, hclog.New(&hclog.LoggerOptions{Output: &log}))
	cfg := DefaultConfig()
	cfg.StateDir = t.TempDir()
	if change != nil {
		change(&cfg)
	}
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	if err := p.ready(); err != nil {
		t.Fatal(err)
	}
	if err := grant.WriteLease(leaseDir(p), grant.Lease{TaskID: "alloc/task", Cards: []string{"GPU-a"}}); err != nil {
		t.Fatal(err)
	}
	p.observe(context.Background(), p.sources[0])
	return p, b, &log
}

func (b *talker) tell(p *Plugin, events ...Event) {
	b.events = events
	p.observe(context.Background(), p.sources[0])
}

func kinds(t *testing.T, p *Plugin) []string {
	t.Helper()
	records, err := health.Read(p.set.StateDir)
	if err != nil {
		t.Error(err)
	}
	var out []string
	for _, r := range records {
		out = append(out, r.Card+" "+string(r.Kind)+": "+r.Reason)
	}
	return out
}

func TestEvents_ErrorOfAProgramIsBlamedOnTheJob(t *testing.T) {
	t.Parallel()
	p, b, log := listen(t, nil)
	for range 3 { // a task that fails again and again
		b.tell(p, Event{Card: "GPU-a", Code: "xid-31", Text: "Xid 31: page fault", Blame: BlameJob}, Event{Card: "GPU-z", Code: "xid-79", Blame: BlameCard})
	}
	wantStates(t, p.sources[0].tracker, map[string]string{"GPU-a": "ok", "GPU-b": "ok"})
	if f := p.faults["GPU-a"]; f.job != 3 || f.card != 0 {
		t.Errorf("counted %+v", f)
	}
	if s := p.read(context.Background()); *s[0].job != 3 || *s[1].job != 0 || *s[0].card != 0 {
		t.Errorf("told %+v", s)
	}
	if diff := cmp.Diff([]string{"GPU-a job_fault: Xid 31: page fault (task alloc/task)"}, kinds(t, p)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if n := strings.Count(log.String(), `task_id=["alloc/task"]`); n != 3 {
		t.Errorf("the job is blamed %d times in:\n%s", n, log)
	}
}

func TestEvents_FaultOfACardTouchesNoOther(t *testing.T) {
	t.Parallel()
	p, b, _ := listen(t, nil)
	b.tell(p, Event{Card: "GPU-b", Code: "xid-79", Text: "Xid 79: off the bus", Blame: BlameCard}, Event{Card: "GPU-a", Code: "xid-1", Text: "Xid 1"})
	wantStates(t, p.sources[0].tracker, map[string]string{"GPU-a": "ok", "GPU-b": "Xid 79: off the bus"})
	p.now = func() time.Time { return time.Now().Add(time.Minute) }
	b.tell(p)
	p.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	b.tell(p)
	wantStates(t, p.sources[0].tracker, map[string]string{"GPU-a": "ok", "GPU-b": "ok"})
	if diff := cmp.Diff([]string{"GPU-b unhealthy: Xid 79: off the bus", "GPU-b healthy: "}, kinds(t, p)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

func TestConditions_AreToldAndJudgedOnlyOnRequest(t *testing.T) {
	t.Parallel()
	yes := true
	samples := map[string]Sample{"GPU-a": {ThermalSlowdown: &yes, ECCUncorrected: ptr(2.), RepairPending: &yes, PowerBrake: &yes, LinkDown: &yes}, "GPU-b": {}}
	for name, tc := range map[string]struct {
		on   []string
		want string
	}{
		"not asked for": {nil, "ok"},
		"heat":          {[]string{"thermal"}, "slowed down by heat"},
		"a link":        {[]string{"link_down"}, "a link to other cards is down"},
		"two":           {[]string{"power_brake", "ecc"}, "memory errors that could not be corrected; slowed down by the power brake"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, b, _ := listen(t, func(c *Config) { c.UnhealthyOn, c.BadSamples = tc.on, 1 })
			b.set(func(b *bench) { b.samples = samples })
			p.sources[0].last.at = time.Time{} // what was read a moment ago counts no more
			b.tell(p)
			wantStates(t, p.sources[0].tracker, map[string]string{"GPU-a": tc.want, "GPU-b": "ok"})
			stats := groupStats(p.read(context.Background()), p.now())[0].InstanceStats
			if got := stats["GPU-a"].Stats.Attributes["conditions"].GetStringVal().GetValue(); strings.Count(got, ";") != 4 {
				t.Errorf("conditions %q", got)
			}
			if _, ok := stats["GPU-b"].Stats.Attributes["conditions"]; ok {
				t.Error("a card without conditions has some")
			}
		})
	}
}

func TestStats_ProcessWithoutAGrantIsFlaggedOnce(t *testing.T) {
	t.Parallel()
	p, b, log := listen(t, nil)
	look := func(processes []int) map[string]state {
		t.Helper()
		b.set(func(b *bench) {
			b.samples = map[string]Sample{"GPU-a": {Processes: []int{7}}, "GPU-b": {Processes: processes}}
		})
		p.sources[0].last.at = time.Time{}
		byCard := map[string]state{}
		for _, s := range p.read(context.Background()) {
			byCard[s.UUID] = s
		}
		return byCard
	}
	for range 2 {
		got := look([]int{4711, 4712})
		if n := got["GPU-b"].foreign; n == nil || *n != 2 || !slices.Equal(got["GPU-b"].wrong(), []string{"2 processes without a grant"}) {
			t.Errorf("%+v", got["GPU-b"])
		}
		if got["GPU-a"].foreign != nil {
			t.Error("of a card that a task has it cannot be told whose the process is")
		}
	}
	if n := strings.Count(log.String(), "granted nothing"); n != 1 {
		t.Errorf("told %d times", n)
	}
	if got := look(nil); got["GPU-b"].foreign != nil {
		t.Error("unknown processes are none")
	}
	if got := look([]int{}); *got["GPU-b"].foreign != 0 || !strings.Contains(log.String(), "uses the card any more") {
		t.Errorf("%+v %s", got["GPU-b"], log)
	}
	if err := p.marks.Add(grant.Reservation{Cards: []grant.Card{{UUID: "GPU-b"}}}, p.now()); err != nil {
		t.Fatal(err)
	}
	if got := look([]int{5}); got["GPU-b"].foreign != nil {
		t.Error("a task that is about to start is no stranger")
	}
	if diff := cmp.Diff([]string{"GPU-b foreign: processes 4711 4712 run on it without a grant"}, kinds(t, p)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}
