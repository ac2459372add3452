package gang

import (
	"fmt"
	"testing"
)

// BenchmarkGang512 places 512 members on 1,000 nodes, of which every other one is in part taken.
func BenchmarkGang512(b *testing.B) {
	for _, mode := range []Mode{Preferred, Balanced} {
		b.Run("mode="+string(mode), func(b *testing.B) {
			c := cluster(b, 5, 10, 20)
			for n := 0; n < c.Len(); n += 2 {
				take(b, c, n, uint8(n%4), uint8(n%3))
			}
			a := Ask{Members: 512, Cards: 4, Level: "rack", Mode: mode}
			for b.Loop() {
				if slots, short := c.Place(a); len(slots) != 512 {
					b.Fatal(short)
				}
			}
		})
	}
}

// BenchmarkKueueTopology is the shape of Kueue's topology test: one block of 10 racks of 64 nodes, and 15,000 gangs of 4
// to 32 members that require, prefer or balance racks. Each waits until it fits; the oldest ends when nothing fits.
func BenchmarkKueueTopology(b *testing.B) {
	for b.Loop() {
		c := cluster(b, 1, 10, 64)
		var running [][]Slot
		one := 0
		for i := range 15_000 {
			a := Ask{Members: []int{4, 8, 16, 32}[i%4], Cards: 1 + i%2, Level: "rack", Mode: []Mode{Required, Preferred, Balanced}[i%3]}
			for {
				slots, _ := c.Place(a)
				if slots != nil {
					if err := c.Take(slots); err != nil {
						b.Fatal(err)
					}
					running = append(running, slots)
					if c.Domain(slots[0].Node, "rack") == c.Domain(slots[len(slots)-1].Node, "rack") {
						one++
					}
					break
				}
				if err := c.Give(running[0]); err != nil {
					b.Fatal(err)
				}
				running = running[1:]
			}
		}
		b.ReportMetric(100*float64(one)/15_000, "%one-rack")
	}
}

// BenchmarkSmall is one job of two cards on clusters of many nodes that are all in part taken.
func BenchmarkSmall(b *testing.B) {
	for _, racks := range []int{16, 160} {
		b.Run(fmt.Sprintf("nodes=%d", racks*64), func(b *testing.B) {
			c := cluster(b, 1, racks, 64)
			for n := range c.Len() {
				take(b, c, n, uint8(n%5), uint8(n%3))
			}
			for b.Loop() {
				c.Place(Ask{Members: 1, Cards: 2})
			}
		})
	}
}
