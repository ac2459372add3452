package potential

// Supply is a kind of node as it is when nothing runs on it, and how many there are.
type Supply struct {
	State State
	Nodes int
}

// total is the card of all nodes, in thousandths of a card, by model and in sum.
func total(supply []Supply) (byModel [MaxModels]float64, all float64) {
	for i := range supply {
		for _, c := range supply[i].State.Cards {
			milli := float64(supply[i].Nodes * c.Milli())
			byModel[c.Model()] += milli
			all += milli
		}
	}
	return byModel, all
}

// fullLoad gives the demand weights with which it would ask for all card there is.
func fullLoad(demand []Share, capacity float64) []Share {
	sum := 0.0
	for i := range demand {
		sum += demand[i].Weight * float64(demand[i].Shape.Demand())
	}
	var out []Share
	for _, d := range demand {
		if d.Shape.Cards > 0 {
			d.Weight *= capacity / sum
			out = append(out, d)
		}
	}
	return out
}

// namedLoads is for each model how much of its card is asked for by requests that name models, when the demand is as
// much as there is card and is spread so that the fullest model is as empty as can be.
func namedLoads(demand []Share, supply []Supply) [MaxModels]float64 {
	capacity, all := total(supply)
	named := map[uint64]float64{} // asked for, by accepted models
	var sets []uint64
	for _, d := range fullLoad(demand, all) {
		if set := d.Shape.Models; set != 0 {
			if _, known := named[set]; !known {
				sets = append(sets, set)
			}
			named[set] += d.Weight * float64(d.Shape.Demand())
		}
	}
	// One set after the other is poured anew over its models, until nothing moves: each round lowers the highest
	// levels, and a few dozen are enough for any cluster.
	const rounds = 50
	poured := make([][MaxModels]float64, len(sets))
	var load [MaxModels]float64
	for range rounds {
		for i, set := range sets {
			for m := range poured[i] {
				load[m] -= poured[i][m]
			}
			poured[i] = pour(named[set], set, &capacity, &load)
			for m := range poured[i] {
				load[m] += poured[i][m]
			}
		}
	}
	for m := range load {
		if capacity[m] > 0 {
			load[m] /= capacity[m]
		}
	}
	return load
}

// pour spreads an amount over the models of a set so that they are filled to the same level above what is in them.
func pour(amount float64, set uint64, capacity, load *[MaxModels]float64) [MaxModels]float64 {
	var out [MaxModels]float64
	low, high, room := 0.0, 0.0, 0.0
	for m := range capacity {
		if set>>m&1 != 0 && capacity[m] > 0 {
			room += capacity[m]
			high = max(high, load[m]/capacity[m])
		}
	}
	if room == 0 {
		return out
	}
	high += amount / room
	fill := func(level float64) (sum float64) {
		for m := range capacity {
			if set>>m&1 != 0 {
				out[m] = max(0, level*capacity[m]-load[m])
				sum += out[m]
			}
		}
		return sum
	}
	const halvings = 50
	for range halvings {
		level := (low + high) / 2
		if fill(level) < amount {
			low = level
		} else {
			high = level
		}
	}
	fill(high)
	return out
}

// slotPrices are the shapes of several cards, each with what a node that can take one is worth to it: the card that
// the shape asks for in all, divided over the places where it could run on an empty cluster. A shape that fits on few
// nodes makes them dear, by whichever of card, processor and memory others lack.
func slotPrices(demand []Share, supply []Supply) []Share {
	_, all := total(supply)
	var out []Share
	for _, d := range fullLoad(demand, all) {
		if d.Shape.Cards < 2 {
			continue
		}
		places := 0
		for i := range supply {
			places += supply[i].Nodes * supply[i].State.slots(&d.Shape)
		}
		if places > 0 {
			out = append(out, Share{d.Shape, d.Weight / float64(places) * float64(d.Shape.Demand())})
		}
	}
	return out
}
