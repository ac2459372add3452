package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/flight"
)

// replayed is the answer of the command.
type replayed struct {
	Decisions int                    `json:"decisions"`
	Outcomes  map[flight.Outcome]int `json:"outcomes"`
	Others    []replayedJob          `json:"others"` // decisions that would be others, in their order
	Cut       []string               `json:"cut"`    // files whose end is missing
}

type replayedJob struct {
	At        time.Time      `json:"at"`
	Namespace string         `json:"namespace"`
	Job       string         `json:"job"`
	Outcome   flight.Outcome `json:"outcome"`
	Was       string         `json:"was"`
	Now       string         `json:"now"`
}

func replayCommand(env Env) *command {
	c := newCommand(env, "Decide again what was decided, under the same settings or others", "PATH")
	c.about = `
PATH is a file of decisions, or the folder that "heteroflow server -record" keeps. Without -plugin every decision
must come out the same to the last bit; the exit status is 2 when one does not. With -plugin it says which jobs would
have been placed, or not, or elsewhere. Each decision is taken on the cluster as it was then: what follows from
another one is not played on.`
	c.predict[""] = complete.PredictOr(complete.PredictFiles("*.flight.gz"), complete.PredictDirs("*"))
	var change []engine.PluginSetting
	c.flags.Func("plugin", "`name=off`, name=on or name=weight, in the place of the setting in force; may be repeated", func(s string) error {
		p, err := pluginSetting(s)
		change = append(change, p)
		return err
	})
	var from, to time.Time
	timeOf := func(t *time.Time) func(string) error {
		return func(s string) (err error) {
			if *t, err = time.Parse(time.RFC3339, s); err != nil {
				err = errors.New("write a time such as 2026-11-30T12:00:00Z")
			}
			return err
		}
	}
	c.flags.Func("from", "leave out decisions before this `time`", timeOf(&from))
	c.flags.Func("to", "leave out decisions from this `time` on", timeOf(&to))
	job := c.flags.String("job", "", "only decisions of this `job`")
	out := c.withOutput()
	c.run = func(ctx context.Context, args []string) error {
		answer := replayed{Outcomes: map[flight.Outcome]int{}, Others: []replayedJob{}, Cut: []string{}}
		for e, err := range flight.Files(args[0]) {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, flight.ErrCut):
				answer.Cut = append(answer.Cut, err.Error())
				continue
			case err != nil:
				return err
			case e.At.Before(from), !to.IsZero() && !e.At.Before(to), *job != "" && e.Request.JobID != *job:
				continue
			}
			answer.add(flight.Replay(e, change))
		}
		if err := c.print(out, answer, nil, func() error { return c.printReplayed(out, &answer) }); err != nil {
			return err
		}
		if len(change) == 0 && len(answer.Others) > 0 {
			return &codeError{code: exitOther, text: "Not every decision comes out the same: this build decides otherwise than the one that kept them, or the engine has a mistake."}
		}
		return nil
	}
	return c
}

// pluginSetting reads name=off, name=on and name=weight.
func pluginSetting(s string) (engine.PluginSetting, error) {
	name, value, ok := strings.Cut(s, "=")
	for _, p := range engine.DefaultPlugins() {
		if !ok || p.Name != name {
			continue
		}
		switch value {
		case "off":
			p.Enabled = false
			return p, nil
		case "on":
			p.Enabled = true
			return p, nil
		}
		weight, err := strconv.ParseFloat(value, 64)
		if err != nil || !(weight >= 0 && weight <= 1000) {
			return p, fmt.Errorf("%q: write %s=off, %s=on or %s=2, a weight of 0 to 1000", s, name, name, name)
		}
		p.Enabled, p.Weight = true, weight
		return p, nil
	}
	var names []string
	for _, p := range engine.DefaultPlugins() {
		names = append(names, p.Name)
	}
	return engine.PluginSetting{}, fmt.Errorf("%q: write name=off, name=on or name=weight; the plugins are %s", s, strings.Join(names, ", "))
}

func (a *replayed) add(r flight.Replayed) {
	a.Decisions++
	outcome := r.Outcome()
	a.Outcomes[outcome]++
	if outcome != flight.Same {
		a.Others = append(a.Others, replayedJob{
			At: r.At, Namespace: r.Request.Namespace, Job: r.Request.JobID, Outcome: outcome, Was: flight.Words(r.Decision), Now: flight.Words(r.Now),
		})
	}
}

// replayedShown is how many decisions are printed for people without -verbose.
const replayedShown = 20

func (c *command) printReplayed(out *output, a *replayed) error {
	head := []string{"Decisions", strconv.Itoa(a.Decisions)}
	for _, o := range []flight.Outcome{flight.Same, flight.Wins, flight.Loses, flight.Moves, flight.Reason, flight.Scores} {
		if n := a.Outcomes[o]; n > 0 {
			head = append(head, outcomeWords[o], strconv.Itoa(n))
		}
	}
	if err := c.printf("%s", facts(head...)); err != nil {
		return err
	}
	for _, cut := range a.Cut {
		if err := c.printf("%s\n", cut); err != nil {
			return err
		}
	}
	if len(a.Others) == 0 {
		return nil
	}
	t := table{{"When", "Job", "Outcome", "Was", "Would be"}}
	for i, j := range a.Others {
		if i == replayedShown && !*out.verbose {
			break
		}
		t.row(moment(&j.At), j.Job, string(j.Outcome), j.Was, j.Now)
	}
	if err := c.printf("%s%s", section("Others"), t); err != nil {
		return err
	}
	if left := len(a.Others) - replayedShown; left > 0 && !*out.verbose {
		return c.printf("and %d more: -verbose prints them all\n", left)
	}
	return nil
}

var outcomeWords = map[flight.Outcome]string{
	flight.Same: "The same", flight.Wins: "Would be placed", flight.Loses: "Would not be placed", flight.Moves: "Would be elsewhere",
	flight.Reason: "Would wait for another reason", flight.Scores: "Would be there by other scores",
}
