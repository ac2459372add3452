package device

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// jobFaultPause is the shortest time between two records of the same error of programs on one card: a task that fails
// and is restarted for ever must not push everything else out of the history.
const jobFaultPause = 10 * time.Minute

// faults counts what befell a card since the plugin started.
type faults struct {
	card, job int
	told      map[string]time.Time // code → when it was written down last
}

// events asks a source what befell its cards; nil when it does not tell.
func (p *Plugin) events(ctx context.Context, s *source) []Event {
	teller, ok := s.Detector.(EventTeller)
	if !ok {
		return nil
	}
	events, err := guarded(ctx, &s.telling, p.limit, func(context.Context) ([]Event, error) { return teller.Events(), nil })
	if err != nil {
		p.log.Debug("what befell cards is not told", "source", s.Name(), "error", err)
		return nil
	}
	return events
}

// hear takes what befell the cards of a source. The caller holds mu.
func (p *Plugin) hear(s *source, events []Event) {
	if events == nil {
		return
	}
	for uuid := range s.tracker.known {
		if p.faults[uuid] == nil {
			p.faults[uuid] = &faults{told: map[string]time.Time{}}
		}
	}
	for _, e := range events {
		known, ok := s.tracker.known[e.Card]
		if !ok {
			continue
		}
		f := p.faults[e.Card]
		switch e.Blame {
		case BlameCard:
			f.card++
			p.log.Error("card has a fault", "device_id", e.Card, "code", e.Code, "what", e.Text)
			s.tracker.condemn(e.Card, e.Text)
		case BlameJob:
			f.job++
			tasks := p.tasksOn(e.Card)
			p.log.Warn("a program on the card made an error, the card stays", "device_id", e.Card, "code", e.Code, "what", e.Text, "task_id", tasks)
			if now := p.now(); now.Sub(f.told[e.Code]) >= jobFaultPause {
				f.told[e.Code] = now
				p.history.write(record(known.card, health.JobFault, blamed(e.Text, tasks), now))
			}
		default:
			p.log.Warn("the driver reports something about the card", "device_id", e.Card, "code", e.Code, "what", e.Text)
		}
	}
}

func blamed(what string, tasks []string) string {
	if len(tasks) == 0 {
		return what
	}
	return what + " (task " + strings.Join(tasks, ", ") + ")"
}

// tasksOn lists the tasks that have a card, by the driver's leases. The caller holds mu.
func (p *Plugin) tasksOn(uuid string) []string {
	leases, err := grant.Leases(p.leasesDir())
	if err != nil {
		p.log.Warn("some leases of running tasks cannot be read", "error", err)
	}
	var tasks []string
	for _, l := range leases {
		if slices.Contains(l.Cards, uuid) {
			tasks = append(tasks, l.TaskID)
		}
	}
	slices.Sort(tasks)
	return tasks
}

// A condition is something that is wrong with a card short of its death. It is told, and makes the card unhealthy only
// where the config says so.
type condition struct {
	name string // as written in unhealthy_on
	text string
	of   func(Sample) *bool // nil when not known
}

var conditions = []condition{
	{"ecc", "memory errors that could not be corrected", func(s Sample) *bool {
		if s.ECCUncorrected == nil {
			return nil
		}
		some := *s.ECCUncorrected > 0
		return &some
	}},
	{"memory_repair", "a page or row of memory waits to be replaced at the next reset", func(s Sample) *bool { return s.RepairPending }},
	{"thermal", "slowed down by heat", func(s Sample) *bool { return s.ThermalSlowdown }},
	{"power_brake", "slowed down by the power brake", func(s Sample) *bool { return s.PowerBrake }},
	{"link_down", "a link to other cards is down", func(s Sample) *bool { return s.LinkDown }},
}

// conditionsOf lists the conditions that a sample shows, of all or of those with the given names.
func conditionsOf(s Sample, names []string) []string {
	var texts []string
	for _, c := range conditions {
		if yes := c.of(s); yes != nil && *yes && (names == nil || slices.Contains(names, c.name)) {
			texts = append(texts, c.text)
		}
	}
	return texts
}

// judged marks the cards whose numbers show a condition that the config makes unhealthy.
func (s settings) judged(cards []accel.Card, samples map[string]Sample) []accel.Card {
	for i, c := range cards {
		if why := conditionsOf(samples[c.UUID], s.UnhealthyOn); c.Health.OK && len(why) > 0 {
			cards[i].Health = accel.Health{Reason: strings.Join(why, "; ")}
		}
	}
	return cards
}
