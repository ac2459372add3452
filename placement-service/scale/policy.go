package scale

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

// Tree is JSON as Nomad's API sends it, numbers as json.Number.
type Tree = nomadapi.Tree

// mostInstances bounds what a policy may ask for.
const mostInstances = 10_000

// Policy is how a group is scaled. Targets are for each instance; 0 is none.
type Policy struct {
	Min, Max   int
	Requests   int           // in flight and held at gateways
	Tokens     int64         // a minute, of prompts and answers
	Cache      float64       // use of the fullest engine's cache, 0 to 1
	FirstToken time.Duration // mean time to the first token
	DownAfter  time.Duration // how long fewer must have been enough
	IdleAfter  time.Duration // how long there must have been nothing to do before the last instance goes
	DryRun     bool
	Schedule   []Window
}

const (
	defaultRequests  = 16
	defaultDownAfter = 5 * time.Minute
	defaultIdleAfter = 15 * time.Minute
)

// BlockName is that of the block in a group's scaling policy that has it scaled.
const BlockName = "heteroflow"

// ReadPolicy reads a group's scaling block; nil when it is not to be scaled. An error says what to write instead.
func ReadPolicy(group Tree) (*Policy, error) {
	scaling, _ := group["Scaling"].(Tree)
	policy, _ := scaling["Policy"].(Tree)
	block := policy[BlockName]
	if list, ok := block.([]any); ok && len(list) == 1 {
		block = list[0] // as HCL has blocks
	}
	if block == nil || scaling["Enabled"] == false {
		return nil, nil
	}
	fields, ok := block.(Tree)
	if !ok {
		return nil, fmt.Errorf("scaling.policy.%s: write one block", BlockName)
	}
	p := &Policy{DownAfter: defaultDownAfter, IdleAfter: defaultIdleAfter, Min: whole(scaling["Min"], 0), Max: whole(scaling["Max"], -1)}
	if p.Max < 0 {
		return nil, fmt.Errorf("scaling.max: write how many instances there may be at most")
	}
	if p.Min > p.Max {
		return nil, fmt.Errorf("scaling: min %d is above max %d", p.Min, p.Max)
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := p.set(name, fields[name]); err != nil {
			return nil, fmt.Errorf("scaling.policy.%s.%s: %w", BlockName, name, err)
		}
	}
	if p.Requests == 0 && p.Tokens == 0 && p.Cache == 0 && p.FirstToken == 0 {
		p.Requests = defaultRequests
	}
	return p, nil
}

func (p *Policy) set(name string, value any) (err error) {
	switch name {
	case "requests":
		if p.Requests = whole(value, 0); p.Requests < 1 {
			return fmt.Errorf("write how many requests an instance is to have, such as 16")
		}
	case "tokens":
		if p.Tokens = int64(whole(value, 0)); p.Tokens < 1 {
			return fmt.Errorf("write how many tokens a minute an instance is to have, such as 60000")
		}
	case "cache":
		n, ok := value.(json.Number)
		if ok {
			p.Cache, err = n.Float64()
		}
		if !ok || err != nil || !(p.Cache > 0 && p.Cache <= 1) {
			return fmt.Errorf("write how full the engines' caches are to be, above 0 and at most 1, such as 0.8")
		}
	case "first_token":
		p.FirstToken, err = duration(value, time.Millisecond)
	case "down_after":
		p.DownAfter, err = duration(value, time.Minute)
	case "idle_after":
		p.IdleAfter, err = duration(value, time.Minute)
	case "dry_run":
		is, ok := value.(bool)
		if p.DryRun = is; !ok {
			return fmt.Errorf("write true or false")
		}
	case "schedule":
		return p.setSchedule(value)
	default:
		return fmt.Errorf("it is not known: write requests, tokens, cache, first_token, down_after, idle_after, dry_run or schedule")
	}
	return err
}

func (p *Policy) setSchedule(value any) error {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for _, one := range list {
		text, ok := one.(string)
		if !ok {
			return fmt.Errorf("%s", windowHelp)
		}
		w, err := ParseWindow(text)
		if err != nil {
			return err
		}
		if w.Min != nil && *w.Min > p.Max {
			return fmt.Errorf("%q wants more than scaling.max, which is %d", text, p.Max)
		}
		if w.Max != nil && *w.Max < p.Min {
			return fmt.Errorf("%q allows less than scaling.min, which is %d", text, p.Min)
		}
		p.Schedule = append(p.Schedule, w)
	}
	return nil
}

func whole(value any, otherwise int) int {
	n, ok := value.(json.Number)
	if !ok {
		return otherwise
	}
	i, err := n.Int64()
	if err != nil || i < -1<<40 || i > 1<<40 {
		return otherwise
	}
	return int(i)
}

// longest bounds durations, as a peak is kept for so long.
const longest = 24 * time.Hour

func duration(value any, least time.Duration) (time.Duration, error) {
	text, _ := value.(string)
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < least || d > longest {
		return 0, fmt.Errorf("write a time from %q to %q", least.String(), longest.String())
	}
	return d, nil
}

// bounds are the least and the most instances at the moment, and the window that says so; nil when none does.
func (p *Policy) bounds(at time.Time) (least, most int, by *Window) {
	least, most = p.Min, p.Max
	for i, w := range p.Schedule {
		if !w.Holds(at) {
			continue
		}
		if w.Min != nil && *w.Min > least {
			least, by = *w.Min, &p.Schedule[i]
		}
		if w.Max != nil && *w.Max < most {
			most, by = *w.Max, &p.Schedule[i]
		}
	}
	return least, max(least, most), by
}
