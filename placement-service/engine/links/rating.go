package links

// Rating is how good a set of cards is, each part from 0 to 1, where 1 is as good as the node could ever give.
type Rating struct {
	Links float64 // the slowest link between two of them; 1 for a single card
	NIC   float64 // the slowest path from one of them to its nearest network card
	Whole float64 // what stays for those who come later: 1 where no group is broken up that need not be
}

// Rating rates a set of free cards that is taken out of those that are free.
func (b *Box) Rating(free, cards Set) Rating {
	free &= b.all
	cards &= free
	n := cards.Len()
	if n == 0 {
		return Rating{Links: 1, NIC: 1, Whole: 1}
	}
	is := &b.sets[cards]
	out := Rating{Links: 1, NIC: part(is.near, uint16(b.top[1][n]>>32)), Whole: 1 / float64(1+b.broken(free, cards))}
	if n > 1 {
		out.Links = part(is.worst, uint16(b.top[0][n]>>16))
	}
	return out
}

// broken is how many groups, of all sizes together, are broken up beyond those that so many cards make up.
func (b *Box) broken(free, cards Set) int {
	before, after := b.sets[free].groups, b.sets[free&^cards].groups
	lost := 0
	for at := len(groupSizes) - 1; at >= 0; at-- { // the smallest is in the lowest bits
		if size := groupSizes[at]; size <= b.all.Len() {
			lost += max(0, int(before&0xff)-int(after&0xff)-cards.Len()/size)
			before, after = before>>8, after>>8
		}
	}
	return lost
}

// part is how much of the best a speed is; where there is nothing better to be had it is all.
func part(speed, best uint16) float64 {
	if best == 0 || speed >= best {
		return 1
	}
	return float64(speed) / float64(best)
}
