package command

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/api/client"
)

func explainCommand(env Env) *command {
	c := newCommand(env, "Say why a job is where it is, or why it waits", "JOB")
	c.about = `JOB is the id of a job or the beginning of one.`
	conn, out := c.withConnection(), c.withOutput()
	c.predict[""] = c.predictJobs(conn)
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		params := &client.ExplainJobParams{Namespace: given(c.namespace(conn))}
		answer, err := service.ExplainJobWithResponse(ctx, args[0], params)
		if err == nil && answer.StatusCode() == http.StatusNotFound {
			id, findErr := c.completeID(ctx, conn, args[0])
			if findErr != nil {
				return findErr
			}
			answer, err = service.ExplainJobWithResponse(ctx, id, params)
		}
		explanation, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, explanation, raw, func() error { return c.printExplanation(out, explanation) })
	}
	return c
}

// completeID makes the id of a job of the beginning of one.
func (c *command) completeID(ctx context.Context, conn *connection, prefix string) (string, error) {
	nomad, err := c.nomad(conn)
	if err != nil {
		return "", err
	}
	job, err := c.findJob(ctx, nomad, conn, prefix)
	if err != nil {
		return "", err
	}
	return *job.ID, nil
}

func (c *command) printExplanation(out *output, e *client.Explanation) error {
	position := ""
	if e.Job.QueuePosition != nil {
		position = strconv.Itoa(*e.Job.QueuePosition)
	}
	head := facts("Job", e.Job.ID, "Namespace", e.Job.Namespace, "Tenant", e.Job.Tenant, "State", string(e.Job.State),
		"In Nomad", text(e.Job.NomadStatus), "Priority", strconv.Itoa(e.Job.Priority), "Queue Position", position,
		"Waiting Since", moment(e.Job.QueuedAt), "Reason", text(e.Job.Reason))
	if err := c.printf("%s", head); err != nil {
		return err
	}
	if len(e.Job.Placements) > 0 {
		if err := c.printf("%s%s", section("Holds"), placementTable(out, e.Job.Placements)); err != nil {
			return err
		}
	}
	if err := c.printDecision(out, "If it were submitted now", &e.Now); err != nil {
		return err
	}
	if e.Decided != nil {
		if err := c.printDecision(out, "As it was decided", e.Decided); err != nil {
			return err
		}
	}
	if len(e.History) == 0 {
		return nil
	}
	t := table{{"When", "Outcome", "Reason"}}
	for _, d := range e.History {
		t.row(moment(&d.At), d.Outcome, dash(text(d.Reason)))
	}
	return c.printf("%s%s", section("History"), t)
}

func (c *command) printDecision(out *output, title string, d *client.Decision) error {
	var b strings.Builder
	b.WriteString(section(title))
	b.WriteString(facts("Outcome", d.Outcome, "Reason", text(d.Reason), "Code", text(d.ReasonCode)))
	if len(d.Counts) > 0 {
		t := table{{"Nodes", "Fell out for", "Example"}}
		for _, n := range d.Counts {
			t.row(strconv.Itoa(n.Nodes), n.Code, dash(text(n.Example)))
		}
		b.WriteString("\n" + t.String())
	}
	if len(d.Suggestions) > 0 {
		t := table{{"Would start now with", "Instead of", "In"}}
		for _, s := range d.Suggestions {
			t.row(s.Field+" = "+s.To, s.From, dash(cmp.Or(text(s.Task), text(s.Group))))
		}
		b.WriteString("\n" + t.String())
	}
	if len(d.Placements) > 0 {
		b.WriteString("\n" + placementTable(out, d.Placements).String())
	}
	if len(d.Switches) > 0 {
		t := table{{"Card", "Node", "Switches to"}}
		for _, s := range d.Switches {
			t.row(s.CardUUID, out.id(s.NodeID), s.Form)
		}
		b.WriteString("\n" + t.String())
	}
	return c.printf("%s", b.String())
}
