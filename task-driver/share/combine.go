package share

import (
	"fmt"
	"maps"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Combined is what all shares of one task need together. It is kept in the task's record.
type Combined struct {
	// Setup has what holds for the whole task. Its Visible and Instead are empty: see Cards.
	Setup
	// Cards is what each share says of its own card, by UUID: Visible, Nodes, Instead and Runtime. A card of the task's own is
	// not in it.
	Cards map[string]Setup `json:"cards,omitempty"`
	// QoS is the weakest of the shares'; empty without a share.
	QoS accel.QoS `json:"share_qos,omitempty"`
}

// VisibleAs is what stands for the cards in the brands' variables, by UUID; cards that are not in it stand for themselves.
func (c Combined) VisibleAs() map[string]string {
	names := map[string]string{}
	for uuid, s := range c.Cards {
		if s.Visible != "" {
			names[uuid] = s.Visible
		}
	}
	return names
}

// Combine lays the setups of a task's shares together. The error says that two of them cannot be had at once.
func Combine(made []Made) (Combined, error) {
	var c Combined
	for _, group := range groups(made) {
		setups, err := joined(group)
		if err != nil {
			return Combined{}, err
		}
		for i, one := range group {
			if one.Isolation != nil && (c.QoS == "" || rank(one.Isolation.QoS) < rank(c.QoS)) {
				c.QoS = one.Isolation.QoS
			}
			own := Setup{Visible: one.Setup.Visible, Instead: one.Setup.Instead}
			if i < len(setups) { // the others are covered by the one that was joined
				own.Nodes, own.Runtime = setups[i].Nodes, setups[i].Runtime
				if err := c.add(setups[i], one); err != nil {
					return Combined{}, err
				}
			}
			if c.Cards == nil {
				c.Cards = map[string]Setup{}
			}
			c.Cards[one.Ask.Card.UUID] = own
		}
	}
	return c, nil
}

// groups are the shares by backend, in the order in which backends and cards come first; whole cards have none to add.
func groups(made []Made) [][]Made {
	var out [][]Made
	for _, one := range made {
		if one.by == nil {
			continue
		}
		at := slices.IndexFunc(out, func(g []Made) bool { return lockOf(g[0].by) == lockOf(one.by) && g[0].Ask.Vendor == one.Ask.Vendor })
		if at < 0 {
			out = append(out, []Made{one})
			continue
		}
		out[at] = append(out[at], one)
	}
	return out
}

// joined are the setups of one backend's shares: one for each, or one for all when the backend joins them.
func joined(group []Made) ([]Setup, error) {
	var setups []Setup
	for _, one := range group {
		setups = append(setups, one.Setup)
	}
	j, ok := group[0].by.(Joiner)
	if !ok || len(group) == 1 {
		return setups, nil
	}
	s, err := j.Join(setups)
	if err != nil {
		return nil, fmt.Errorf("use %d cards of %s by %s in one task: %w", len(group), group[0].Ask.Vendor, group[0].Backend, err)
	}
	return []Setup{s}, nil
}

// add lays one setup beside the others.
func (c *Combined) add(s Setup, of Made) error {
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if other, set := c.Env[name]; set && other != s.Env[name] {
			return fmt.Errorf("card %s by %s needs %s=%q, another of the task's cards %q: ask for cards of one kind, or in two tasks",
				of.Ask.Card.UUID, of.Backend, name, s.Env[name], other)
		}
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[name] = s.Env[name]
	}
	for _, m := range s.Mounts {
		at := slices.IndexFunc(c.Mounts, func(o Mount) bool { return o.Target == m.Target })
		if at >= 0 && c.Mounts[at].Source != m.Source {
			return fmt.Errorf("card %s by %s needs %s at %s, where another of the task's cards needs %s: ask for cards of one kind, or in two tasks",
				of.Ask.Card.UUID, of.Backend, m.Source, m.Target, c.Mounts[at].Source)
		}
		if at < 0 {
			c.Mounts = append(c.Mounts, m)
		}
	}
	for _, n := range s.Nodes {
		if !slices.Contains(c.Nodes, n) {
			c.Nodes = append(c.Nodes, n)
		}
	}
	if s.Runtime != "" && c.Runtime != "" && c.Runtime != s.Runtime {
		return fmt.Errorf("card %s by %s needs the container runtime %s, another of the task's cards %s: ask for cards of one kind, or in two tasks",
			of.Ask.Card.UUID, of.Backend, s.Runtime, c.Runtime)
	}
	if s.Runtime != "" {
		c.Runtime = s.Runtime
	}
	c.IPCHost = c.IPCHost || s.IPCHost
	return nil
}
