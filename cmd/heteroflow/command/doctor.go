package command

import "context"

func doctorCommand(env Env) *command {
	c := newCommand(env, "Check", "")
	c.run = func(context.Context, []string) error { return nil }
	return c
}
