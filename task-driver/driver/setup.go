package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// use takes what was made of the shares into the plan: the task's environment, and for containers what applyShare adds.
func (p *plan) use(made []share.Made) error {
	setup, err := share.Combine(made)
	if err != nil {
		return err
	}
	if p.tc.Runtime == runtimeProcess && (len(setup.Mounts) > 0 || setup.Runtime != "") {
		return errors.New(`the task's share needs mounts or a runtime of its own, which a process of the host cannot have: use runtime = "docker"`)
	}
	p.setup = setup
	if setup.QoS != "" && p.share.asks[0].QoS == "" { // no grant says what it is
		p.share.qos = setup.QoS
	}
	p.env = taskEnv(p.cfg, p.tc, p.share, setup)
	return nil
}

// shareEnv puts in the part of a task's environment that nothing else may change: the cards it sees, then what its shares
// need. A container has its own cards only, and counts those, unless it is privileged and has all.
func shareEnv(env map[string]string, tc TaskConfig, cards []accel.Card, setup share.Combined) {
	seen := accel.VisibleEnvAs(cards, setup.VisibleAs())
	if tc.Runtime == runtimeDocker && !tc.Privileged {
		var unset []string
		seen, unset = accel.VisibleEnvInside(cards, setup.VisibleAs())
		for _, name := range unset {
			delete(env, name)
		}
	}
	maps.Copy(env, seen)
	maps.Copy(env, setup.Env)
}

// applyShare adds to a container what its shares need beside the access to their cards, in place of what the job says.
func (p *plan) applyShare(c *docker.Container) {
	for _, m := range p.setup.Mounts {
		c.Mounts = replaceMount(c.Mounts, docker.Mount{Type: "bind", Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	if p.setup.IPCHost {
		c.IPCMode = "host"
	}
}

// checkShares refuses a container that sees something else than its shares at their places.
func (r *dockerRuntime) checkShares(ctx context.Context, p *plan, rec *record) error {
	if len(p.setup.Mounts) == 0 {
		return nil
	}
	state, err := r.engine.State(ctx, rec.Container)
	if err != nil || state.PID == 0 {
		return err // it has ended
	}
	err = sharesSeen(state.PID, rec.Container, p.setup.Mounts)
	if errors.Is(err, errNotSeen) {
		r.log.Warn("whether an image's links lead around a share is not checked", "task_id", p.cfg.GetId(), "error", err)
		return nil
	}
	return err
}

// heldOf is what a record keeps of shares.
func heldOf(made []share.Made) []share.Held {
	var out []share.Held
	for _, m := range made {
		out = append(out, m.Held)
	}
	return out
}

// describeShares says in one line what a task holds, for inspection.
func describeShares(held []share.Held) string {
	var parts []string
	for _, h := range held {
		if h.Backend == "" {
			continue
		}
		text := fmt.Sprintf("%s: %s by %s", h.Ask.Card.UUID, accel.FormatMiB(h.Ask.MemoryMiB), h.Backend)
		if h.Ask.ComputePct > 0 {
			text += fmt.Sprintf(", %d%% compute", h.Ask.ComputePct)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// hostRoot is where the machine's file system begins.
const hostRoot = string(os.PathSeparator)
