package config

import (
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// Preemption says when the placement service evicts jobs for one of higher priority. Durations are written as 90s or
// 10m; what is left out is the default.
type Preemption struct {
	Mode       string   `hcl:"mode,optional"`          // off, queue_only or running
	MinRuntime string   `hcl:"min_runtime,optional"`   // what runs for less stays
	Guard      string   `hcl:"guard,optional"`         // a job that was evicted stays for so long
	Grace      string   `hcl:"grace,optional"`         // between a job's checkpoint signal and its stop
	Watchdog   string   `hcl:"watchdog,optional"`      // for the room to be free; then all is rolled back
	Budget     *float64 `hcl:"budget,optional"`        // cards that a tenant may lose within the window; 0 is no limit
	Window     string   `hcl:"budget_window,optional"` // that the budget is about
	Excess     *float64 `hcl:"max_excess,optional"`    // cards evicted for each that is asked for, at least 1; 0 is no limit
}

// Rules are the block's, those of a block that was left out with nil. An error names the argument.
func (p *Preemption) Rules() (submit.Preemption, error) {
	rules := submit.DefaultPreemption()
	if p == nil {
		return rules, nil
	}
	var problems []error
	switch mode := preempt.Mode(p.Mode); mode {
	case "":
	case preempt.Off, preempt.QueueOnly, preempt.Running:
		rules.Mode = mode
	default:
		problems = append(problems, fmt.Errorf("preemption mode %q: write off, queue_only or running", p.Mode))
	}
	read := func(name, text string, to *time.Duration, least time.Duration) {
		if text == "" {
			return
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < least {
			problems = append(problems, fmt.Errorf("preemption %s %q: write a time of %v or more, as 90s or 10m", name, text, least))
			return
		}
		*to = d
	}
	read("min_runtime", p.MinRuntime, &rules.MinRuntime, 0)
	read("guard", p.Guard, &rules.Guard, time.Minute)
	read("grace", p.Grace, &rules.Grace, 0)
	read("watchdog", p.Watchdog, &rules.Watchdog, time.Second)
	read("budget_window", p.Window, &rules.Window, time.Minute)
	if p.Budget != nil {
		if rules.Budget = *p.Budget; rules.Budget < 0 {
			problems = append(problems, fmt.Errorf("preemption budget %v: write a number of cards, or 0 for no limit", rules.Budget))
		}
	}
	if p.Excess != nil {
		if rules.Excess = *p.Excess; rules.Excess != 0 && rules.Excess < 1 {
			problems = append(problems, fmt.Errorf("preemption max_excess %v: write 1 or more, or 0 for no limit", rules.Excess))
		}
	}
	return rules, errors.Join(problems...)
}
