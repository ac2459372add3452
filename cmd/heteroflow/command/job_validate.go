package command

import (
	"cmp"
	"context"

	"github.com/hashicorp/nomad/api"
)

func jobValidateCommand(env Env) *command {
	c := newCommand(env, "Check a job without submitting it", "FILE")
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
		answer, _, err := nomad.Jobs().Validate(src.job, write)
		if err != nil {
			return nomadError(conn, err)
		}
		if out.machine() {
			if err := c.print(out, answer, nil, nil); err != nil {
				return err
			}
		}
		if answer.Warnings != "" {
			c.tell("%s", answer.Warnings)
		}
		if answer.Error != "" || len(answer.ValidationErrors) > 0 {
			for _, problem := range answer.ValidationErrors {
				c.tell("  * %s", problem)
			}
			return &codeError{code: exitError, text: cmp.Or(answer.Error, "the job is not valid")}
		}
		if out.machine() {
			return nil
		}
		return c.printf("Job validation successful\n")
	}
	return c
}
