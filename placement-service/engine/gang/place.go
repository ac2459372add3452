package gang

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Mode is how much a gang insists on a level.
type Mode string

// The modes.
const (
	Preferred Mode = ""         // in one domain of the level, or of one as far in as there is; else in as few as can be
	Required  Mode = "required" // in one domain of the level, or not at all
	Balanced  Mode = "balanced" // over as few domains of the level as can be, evenly
)

// Levels that every cluster has, within its innermost one. Parts are a node's, such as its halves.
const (
	LevelNode = "node"
	LevelPart = "part"
)

// Ask is a gang: members that each take cards of one node.
type Ask struct {
	Members int    // the most, at least 1
	Min     int    // the fewest that may run; 0 stands for all
	Cards   int    // of each member, at least 1
	Level   string // one of the cluster's, LevelNode or LevelPart; none when empty
	Mode    Mode
	// Limit is how many members a node takes for other reasons than its cards, such as processor, memory or a filter. Nil
	// stands for no other reasons. Nodes are known by their place.
	Limit func(node int) int
}

const unlimited = math.MaxInt32

// Slot is the place of one member.
type Slot struct {
	Node  int
	Parts Parts // cards that it takes of each part
}

// Short is why a gang does not fit: the domain that comes nearest.
type Short struct {
	Level  string // of the domain; empty for the whole cluster
	Domain string
	Room   int // members of it that would fit there
	Need   int
}

// Check says what is wrong with an ask, and what to write instead.
func (c *Cluster) Check(a Ask) error {
	levels := append(slices.Clone(c.levels), LevelNode, LevelPart)
	switch {
	case a.Members < 1 || a.Cards < 1:
		return fmt.Errorf("a gang of %d members with %d cards each: both have to be at least 1", a.Members, a.Cards)
	case a.Min < 0 || a.Min > a.Members:
		return fmt.Errorf("at least %d of %d members: write a number from 1 to %d, or none for all", a.Min, a.Members, a.Members)
	case a.Level != "" && !slices.Contains(levels, a.Level):
		return fmt.Errorf("there is no level %q: write one of %s", a.Level, strings.Join(levels, ", "))
	case a.Level == "" && a.Mode != Preferred:
		return fmt.Errorf("mode %q needs a level: write one of %s", a.Mode, strings.Join(levels, ", "))
	case a.Mode != Preferred && a.Mode != Required && a.Mode != Balanced:
		return fmt.Errorf("there is no mode %q: write %s or %s, or none for preferred", a.Mode, Required, Balanced)
	}
	return nil
}

// Place finds slots for a gang that passes Check, in the order of their ranks: members of one node, of one rack and of one zone follow
// each other. Nothing is taken. When not even Min members fit it gives none and says what is short.
//
// A gang goes to the innermost domain that holds it, a single node if there is one. Among those, to the one with the
// least room to spare, so that the emptier ones stay for larger gangs; members that fit into one node go to the fullest
// node that holds them without cutting them up between its parts, an untouched one last. Where no domain holds it, it fills the emptiest ones,
// so that it spreads over as few as can be.
func (c *Cluster) Place(a Ask) ([]Slot, *Short) {
	v := c.view(&a)
	top, room := v.widest(&a)
	members := min(a.Members, room)
	if members < a.least() {
		return nil, &Short{Level: c.levelOf(top), Domain: c.domains[top].name, Room: room, Need: a.least()}
	}
	v.slots = make([]Slot, 0, members)
	switch {
	case v.oneNode(members):
	case a.Mode == Balanced && slices.Contains(c.levels, a.Level):
		v.balance(&a, members)
	default:
		v.fill(v.narrowest(members), members)
	}
	return v.slots, nil
}

func (a *Ask) least() int {
	if a.Min > 0 {
		return min(a.Min, a.Members)
	}
	return max(1, a.Members)
}

func (c *Cluster) levelOf(d int) string {
	if c.domains[d].level < 0 {
		return ""
	}
	return c.levels[c.domains[d].level]
}

// view is the cluster as one ask sees it.
type view struct {
	c     *Cluster
	cards int
	index *index
	room  []int // by kind: members that a node of it takes
	of    []int // by domain: members that it takes
	slots []Slot

	inDomain int // where a single node is looked for
}

func (c *Cluster) view(a *Ask) *view {
	v := &view{c: c, cards: max(1, a.Cards), index: &c.index}
	if a.Limit != nil {
		v.index = c.limited(a.Limit)
	}
	v.room = make([]int, len(v.index.kinds))
	for k, kind := range v.index.kinds {
		v.room[k] = min(kind.limit, kind.state.room(v.cards, a.Mode == Required && a.Level == LevelPart))
	}
	v.of = make([]int, len(c.domains))
	for d := range c.domains {
		for k, n := range v.index.count[d] {
			v.of[d] += int(n) * v.room[k]
		}
	}
	return v
}

// room is how many members a node takes, or one of its parts.
func (s *state) room(cards int, onePart bool) int {
	if onePart {
		return int(slices.Max(s.free[:])) / cards
	}
	return s.free.sum() / cards
}

// limited counts the nodes by their state and their limit.
func (c *Cluster) limited(limit func(int) int) *index {
	x := &index{count: make([][]int32, len(c.domains)), bits: make([][][]uint64, len(c.domains))}
	kinds := map[kind]int{}
	for i := range c.nodes {
		n := &c.nodes[i]
		key := c.index.kinds[n.kind]
		key.limit = max(0, limit(i))
		k, ok := kinds[key]
		if !ok {
			k = len(x.kinds)
			kinds[key] = k
			x.kinds = append(x.kinds, key)
		}
		x.add(c, n, k, 1)
	}
	return x
}

// widest is the domain with the most room that the gang may have: the whole cluster, one of the level it requires, or
// the one with the node that has the most room.
func (v *view) widest(a *Ask) (d, room int) {
	switch {
	case a.Mode != Required:
		return 0, v.of[0]
	case a.Level == LevelNode || a.Level == LevelPart:
		for i := range v.c.domains {
			for k, n := range v.index.count[i] {
				if n > 0 && v.room[k] > room && v.c.domains[i].nodes != nil {
					d, room = i, v.room[k]
				}
			}
		}
		return d, room
	}
	for i := range v.c.domains {
		if v.c.levelOf(i) == a.Level && v.of[i] > room {
			d, room = i, v.of[i]
		}
	}
	return d, room
}

// narrowest is the domain farthest in that has room for all, the one with the least room of them.
func (v *view) narrowest(members int) int {
	best := 0
	for d := range v.c.domains {
		if v.of[d] < members {
			continue
		}
		if level, have := v.c.domains[d].level, v.c.domains[best].level; level > have || level == have && v.of[d] < v.of[best] {
			best = d
		}
	}
	return best
}
