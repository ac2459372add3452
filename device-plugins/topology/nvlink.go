package topology

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// NVLinks is what `nvidia-smi nvlink -s` says of one card.
type NVLinks struct {
	Label string // GPU and the index
	UUID  string
	GBps  []*float64 // speed of each link, one way; nil for a link that is not up
}

var (
	nvlinkCard = regexp.MustCompile(`^GPU (\d+): .*\(UUID: ([^)\s]+)\)$`)
	nvlinkLine = regexp.MustCompile(`^Link \d+: (?:([0-9.]+) GB/s|\S.*)$`)
)

// ParseNVLinks reads `nvidia-smi nvlink -s`. A card that does not answer, such as one in MIG mode, has no links in it.
func ParseNVLinks(text string) []NVLinks {
	var cards []NVLinks
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if found := nvlinkCard.FindStringSubmatch(line); found != nil {
			if len(cards) == maxColumns {
				break
			}
			cards = append(cards, NVLinks{Label: "GPU" + found[1], UUID: found[2]})
			continue
		}
		if found := nvlinkLine.FindStringSubmatch(line); found != nil && len(cards) > 0 && len(cards[len(cards)-1].GBps) < maxColumns {
			last := &cards[len(cards)-1]
			last.GBps = append(last.GBps, bandwidth(found[1]))
		}
	}
	return cards
}

// AddSpeeds adds bandwidth to the NVLinks of a graph whose cards bear the tool's labels. All links of a card that are up
// must tell the same speed: which of them lead to which peer is not shown.
func (g *Graph) AddSpeeds(cards []NVLinks) {
	each := map[string]float64{}
	for _, c := range cards {
		if speed, same := c.speed(); same {
			each[c.Label] = speed
		}
	}
	for _, e := range g.Edges() {
		a, b := each[e.A], each[e.B]
		if e.Link.Kind != accel.LinkNVLink && e.Link.Kind != accel.LinkNVSwitch || e.Link.Count == nil || a == 0 || a != b {
			continue
		}
		total := a * float64(*e.Link.Count)
		e.GBps = &total
		g.AddEdge(e)
	}
}

func (c NVLinks) speed() (each float64, same bool) {
	for _, s := range c.GBps {
		switch {
		case s == nil:
		case each != 0 && each != *s:
			return 0, false
		default:
			each = *s
		}
	}
	return each, each != 0
}

// mostNVLinks is how many links the cards with the most have.
const mostNVLinks = 18

// MarkNVSwitches tells which NVLinks of a graph go through switches: those between cards of which each has more links to
// its peers, one by one, than there are on the card. How many those are is known of the cards given, which bear the
// tool's labels; of others the most that any card has is taken. Two cards that have all their links with each other are
// not told from two at a switch.
func (g *Graph) MarkNVSwitches(cards []NVLinks) {
	own := map[string]int{}
	for _, c := range cards {
		own[c.Label] = len(c.GBps)
	}
	switched := func(id string) bool {
		sum, widest := 0, 0
		for _, l := range g.Links(id, Card) {
			if l.Kind == accel.LinkNVLink && l.Count != nil {
				sum, widest = sum+*l.Count, max(widest, *l.Count)
			}
		}
		return sum > max(cmp.Or(own[id], mostNVLinks), widest)
	}
	var through []Edge
	for _, e := range g.Edges() {
		if e.Link.Kind == accel.LinkNVLink && switched(e.A) && switched(e.B) {
			e.Link.Kind = accel.LinkNVSwitch
			through = append(through, e)
		}
	}
	for _, e := range through {
		g.AddEdge(e)
	}
}
