package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

func jobPlanCommand(env Env) *command {
	c := newCommand(env, "Show what submitting a job would change, without doing it", "FILE")
	c.about = `
The exit code is 0 when nothing would change, 2 when allocations would be created, changed or stopped, and 1 when
the job was refused.`
	conn, file, out := c.withConnection(), c.withJobFile(), c.withOutput()
	c.run = func(ctx context.Context, args []string) error {
		nomad, err := c.nomad(conn)
		if err != nil {
			return err
		}
		src, err := file.read(c, nomad, conn, args[0])
		if err != nil {
			return err
		}
		write := (&api.WriteOptions{Namespace: namespaceOf(c, conn, src.job)}).WithContext(ctx)
		plan, _, err := nomad.Jobs().Plan(src.job, true, write)
		if err != nil {
			return nomadError(conn, err)
		}
		err = c.print(out, plan, nil, func() error { return c.printf("%s", planText(plan, args[0], *out.verbose)) })
		if err == nil && changesSomething(plan) {
			return &codeError{code: exitOther}
		}
		return err
	}
	return c
}

// changesSomething reports whether any allocation would be created, changed or stopped.
func changesSomething(plan *api.JobPlanResponse) bool {
	if plan.Diff == nil || plan.Annotations == nil {
		return plan.Diff != nil && plan.Diff.Type != "None"
	}
	for _, u := range plan.Annotations.DesiredTGUpdates {
		if u.Place+u.Stop+u.Migrate+u.InPlaceUpdate+u.DestructiveUpdate+u.Canary > 0 {
			return true
		}
	}
	return len(plan.FailedTGAllocs) > 0
}

func planText(plan *api.JobPlanResponse, file string, verbose bool) string {
	var b strings.Builder
	if plan.Diff != nil {
		b.WriteString(diffText(plan.Diff, verbose))
	}
	b.WriteString("\nScheduler dry-run:\n")
	if len(plan.FailedTGAllocs) == 0 {
		b.WriteString("- All tasks successfully allocated.\n")
	} else {
		b.WriteString("- WARNING: Failed to place all allocations.\n")
		for _, line := range reasons(plan.FailedTGAllocs) {
			b.WriteString("  " + line + "\n")
		}
	}
	if !plan.NextPeriodicLaunch.IsZero() {
		fmt.Fprintf(&b, "- If submitted now, next periodic launch would be at %s.\n", moment(&plan.NextPeriodicLaunch))
	}
	if plan.Warnings != "" {
		b.WriteString("\nJob Warnings:\n" + plan.Warnings + "\n")
	}
	fmt.Fprintf(&b, "\nJob Modify Index: %d\nTo submit the job with version verification run:\n\nheteroflow job run -check-index %d %s\n",
		plan.JobModifyIndex, plan.JobModifyIndex, file)
	return b.String()
}
