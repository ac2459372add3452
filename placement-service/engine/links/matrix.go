package links

import (
	"fmt"
	"math/bits"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// MaxCards is how many cards a node may have for its links to be looked at. The largest machines that are sold as one
// node have 16.
const MaxCards = 16

// Set is a number of cards of one node: bit i stands for the i-th of them.
type Set uint16

// Of is the set of the cards with these numbers, each below MaxCards.
func Of(cards ...int) Set {
	var s Set
	for _, c := range cards {
		s |= 1 << c
	}
	return s
}

// Len is the number of cards in the set.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// Has reports whether the i-th card is in the set.
func (s Set) Has(i int) bool { return s>>i&1 == 1 }

// Cards are the numbers of the cards, ascending.
func (s Set) Cards() []int {
	out := make([]int, 0, s.Len())
	for rest := uint16(s); rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros16(rest))
	}
	return out
}

// Card is one card as its attributes tell it.
type Card struct {
	Peer  string                // its name in the links of the others, see accel.PeerID
	Links map[string]accel.Link // to its neighbours, by Peer; those to cards that are not of the node are passed over
	NIC   *accel.Link           // to the nearest network card; nil when there is none or it is not known
	NUMA  *int                  // nil when not known
}

// Matrix is how the cards of a node are connected, as far as it matters for the choice. Nodes that are built alike have
// equal matrices, so that it can be the key of a map.
type Matrix struct {
	n     int
	speed [MaxCards][MaxCards]uint16
	nic   [MaxCards]uint16
	numa  [MaxCards]int8 // counted from 1 in the order of the cards; 0 when not known
}

// MatrixOf reads the links of the cards of a node. A link of which its two ends do not say the same is taken as the
// slower of the two. It fails when there are more cards than MaxCards or two with one name.
func MatrixOf(cards []Card) (Matrix, error) {
	m := Matrix{n: len(cards)}
	if m.n > MaxCards {
		return Matrix{}, fmt.Errorf("%d cards on one node: links are looked at for up to %d", m.n, MaxCards)
	}
	number := map[string]int{}
	for i, c := range cards {
		if _, twice := number[c.Peer]; twice {
			return Matrix{}, fmt.Errorf("two cards are named %q", c.Peer)
		}
		number[c.Peer] = i
	}
	numa := map[int]int8{}
	for i, c := range cards {
		for peer, l := range c.Links {
			if k, here := number[peer]; here && k != i {
				m.connect(i, k, speed(l))
			}
		}
		if c.NIC != nil {
			m.nic[i] = speed(*c.NIC)
		}
		if c.NUMA != nil {
			if numa[*c.NUMA] == 0 {
				numa[*c.NUMA] = int8(len(numa) + 1)
			}
			m.numa[i] = numa[*c.NUMA]
		}
	}
	return m, nil
}

func (m *Matrix) connect(a, b int, s uint16) {
	if have := m.speed[a][b]; have != 0 {
		s = min(s, have)
	}
	m.speed[a][b], m.speed[b][a] = s, s
}

// Len is the number of cards.
func (m *Matrix) Len() int { return m.n }

// pcieSpeeds are the speeds of what is no maker's fabric, nearest first as accel orders them. Only their order and that
// all are below one link of a fabric is fact: what a level of PCIe carries differs from machine to machine.
var pcieSpeeds = map[accel.LinkKind]uint16{
	accel.LinkPIX: 20, accel.LinkPXB: 16, accel.LinkPHB: 12, accel.LinkNode: 8, accel.LinkSystem: 4, accel.LinkPCIe: 2,
}

const (
	fabricSpeed = 100     // of one link of a maker's fabric
	maxFabric   = 300     // more links between two cards than any machine has
	dieSpeed    = 1 << 15 // within one package
)

// speed is what a link carries, in hundredths of one link of a maker's fabric; 0 stands for no known link. Links of
// which the number is not told count as one, a little less than one that is told.
func speed(l accel.Link) uint16 {
	if s, ok := pcieSpeeds[l.Kind]; ok {
		return s
	}
	if l.Kind == accel.LinkPackage {
		return dieSpeed
	}
	if l.Count == nil {
		return fabricSpeed - 1
	}
	return uint16(fabricSpeed * min(maxFabric, max(1, *l.Count)))
}
