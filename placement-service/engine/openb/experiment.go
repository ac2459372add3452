package openb

import (
	"math"
	"math/rand"

	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// Cluster is what the experiments run on.
type Cluster struct {
	Nodes []potential.State // empty, in the order of names
	Pods  []Pod             // in the order of names
}

// Capacity is the card of all nodes, in thousandths of a card.
func (c *Cluster) Capacity() int {
	total := 0
	for i := range c.Nodes {
		for _, card := range c.Nodes[i].Cards {
			total += card.Milli()
		}
	}
	return total
}

// overload is how much card is asked for until the fill experiment ends, relative to the capacity.
const overload = 1.3

// Arrivals are the pods of the published fill experiment in their order, as indexes of Pods, and the rank of each node.
func (c *Cluster) Arrivals(seed int64) (pods, ranks []int) {
	r := rand.New(rand.NewSource(seed))
	r.Int()
	total := 0
	for i := range c.Pods {
		pods = append(pods, i)
		total += c.Pods[i].Shape.Demand()
	}
	r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	limit := overload * float64(c.Capacity())
	if float64(total) > limit {
		for float64(total) > limit {
			i := r.Intn(len(pods))
			total -= c.Pods[pods[i]].Shape.Demand()
			pods = append(pods[:i], pods[i+1:]...)
		}
	} else {
		for {
			i := r.Intn(len(c.Pods))
			s := &c.Pods[i].Shape
			if float64(total+int(s.Milli)) > limit {
				break
			}
			total += s.Demand()
			pods = append(pods, i)
		}
	}
	return pods, r.Perm(len(c.Nodes))
}

// Curve is the allocated card at each whole percent of card that was asked for, both in percent of the capacity.
type Curve [131]float64

// listener is a scorer that wants to know what happens.
type listener interface {
	Placed()
	Left()
}

// deaf is told everything and keeps nothing.
type deaf struct{}

func (deaf) Placed() {}
func (deaf) Left()   {}

func listening(scorer potential.Scorer) listener {
	if l, ok := scorer.(listener); ok {
		return l
	}
	return deaf{}
}

// Supply is the nodes by kind.
func (c *Cluster) Supply() []potential.Supply {
	at := map[potential.State]int{}
	var out []potential.Supply
	for _, s := range c.Nodes {
		if _, ok := at[s]; !ok {
			at[s] = len(out)
			out = append(out, potential.Supply{State: s})
		}
		out[at[s]].Nodes++
	}
	return out
}

// Mix is the demand of the pod list.
func (c *Cluster) Mix() *potential.Mix {
	at := map[potential.Shape]int{}
	var shares []potential.Share
	for i := range c.Pods {
		s := c.Pods[i].Shape
		if _, ok := at[s]; !ok {
			at[s] = len(shares)
			shares = append(shares, potential.Share{Shape: s})
		}
		shares[at[s]].Weight++
	}
	return potential.NewMix(shares)
}

// placer places pods on nodes, those of a lower rank first where all else is equal.
type placer interface {
	// place books a pod of this shape and gives what ends it; nil when it fits nowhere.
	place(p *potential.Shape) (end func())
}

// Fill runs the published experiment.
func (c *Cluster) Fill(seed int64, scorer potential.Scorer) Curve {
	return c.fill(seed, func(ranks []int) placer { return c.scored(ranks, scorer) })
}

func (c *Cluster) fill(seed int64, by func(ranks []int) placer) Curve {
	pods, ranks := c.Arrivals(seed)
	on := by(ranks)
	capacity := float64(c.Capacity())
	var curve Curve
	var count [len(curve)]int
	asked, used := 0, 0
	for _, i := range pods {
		p := &c.Pods[i].Shape
		asked += p.Demand()
		if on.place(p) != nil {
			used += p.Demand()
		}
		if at := int(math.Round(100 * float64(asked) / capacity)); at < len(curve) {
			curve[at] += 100 * float64(used) / capacity
			count[at]++
		}
	}
	for at, n := range count {
		if n > 0 {
			curve[at] /= float64(n)
		}
	}
	return curve
}

// Churned is what the churn experiment measured.
type Churned struct {
	Allocated float64 // card in use, percent of the capacity
	Lost      float64 // card of the lost pods, percent of the offered
	Multi     float64 // lost pods of 2 and more cards, percent of those
}

// churnArrivals is how many pods arrive in the churn experiment; its last third is measured.
const churnArrivals = 48000

// Churn lets pods of the list come at random and stay for an exponential time, so that they would take load times the
// capacity if all were placed.
func (c *Cluster) Churn(seed int64, load float64, scorer potential.Scorer) Churned {
	return c.churn(seed, load, func(ranks []int) placer { return c.scored(ranks, scorer) })
}

func (c *Cluster) churn(seed int64, load float64, by func(ranks []int) placer) Churned {
	r := rand.New(rand.NewSource(seed))
	on := by(r.Perm(len(c.Nodes)))
	total := 0
	for i := range c.Pods {
		total += c.Pods[i].Shape.Demand()
	}
	capacity := float64(c.Capacity())
	stay := load * capacity * float64(len(c.Pods)) / float64(total) // in mean times between arrivals
	var running departures
	var out Churned
	used, asked, lost, multi, multiLost, now, since := 0, 0, 0, 0, 0, 0.0, 0.0
	for n := range churnArrivals {
		measured := n >= churnArrivals*2/3
		next := now + r.ExpFloat64()
		for len(running) > 0 && running[0].at <= next {
			d := running.pop()
			if measured {
				out.Allocated += float64(used) * (d.at - now)
				since += d.at - now
			}
			now = d.at
			d.end()
			used -= d.demand
		}
		if measured {
			out.Allocated += float64(used) * (next - now)
			since += next - now
		}
		now = next
		i := r.Intn(len(c.Pods))
		leave := now + stay*r.ExpFloat64()
		p := &c.Pods[i].Shape
		end := on.place(p)
		if measured {
			asked += p.Demand()
			if p.Cards > 1 {
				multi++
			}
			if end == nil {
				lost += p.Demand()
				if p.Cards > 1 {
					multiLost++
				}
			}
		}
		if end == nil {
			continue
		}
		running.push(departure{at: leave, demand: p.Demand(), end: end})
		used += p.Demand()
	}
	out.Allocated *= 100 / capacity / since
	out.Lost = 100 * float64(lost) / float64(asked)
	if multi > 0 {
		out.Multi = 100 * float64(multiLost) / float64(multi)
	}
	return out
}
