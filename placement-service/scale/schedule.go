package scale

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // hosts without zones of their own
)

// Window is a part of the week in which other bounds hold.
type Window struct {
	days     [7]bool // on which it begins, Sunday first
	from, to int     // minutes of the day; it goes over midnight where to is not after from
	zone     *time.Location
	Min, Max *int // nil leaves the bound as it is
	text     string
}

const windowHelp = `write it as "Mon-Fri 09:00-18:00 Asia/Shanghai min=4": days (Mon-Fri, Sat,Sun or *), hours, zone, and min= or max= or both`

// ParseWindow reads a window, such as "Mon-Fri 09:00-18:00 Asia/Shanghai min=4 max=8". An error says what to write.
func ParseWindow(text string) (Window, error) {
	w, err := parseWindow(text)
	if err != nil {
		return Window{}, fmt.Errorf("schedule %q: %w; %s", text, err, windowHelp)
	}
	return w, nil
}

func parseWindow(text string) (w Window, err error) {
	fields := strings.Fields(text)
	if len(fields) < 4 || len(fields) > 5 {
		return w, fmt.Errorf("it has %d parts", len(fields))
	}
	w.text = strings.Join(fields, " ")
	if w.days, err = parseDays(fields[0]); err != nil {
		return w, err
	}
	from, to, ok := strings.Cut(fields[1], "-")
	if !ok {
		return w, fmt.Errorf("%q is no span of hours", fields[1])
	}
	if w.from, err = parseClock(from); err != nil {
		return w, err
	}
	if w.to, err = parseClock(to); err != nil {
		return w, err
	}
	if w.from == dayMinutes {
		return w, fmt.Errorf("a day does not begin at 24:00")
	}
	if fields[2] == "Local" {
		return w, fmt.Errorf("%q is another zone on each machine", fields[2])
	}
	if w.zone, err = time.LoadLocation(fields[2]); err != nil {
		return w, fmt.Errorf("zone %q is not known", fields[2])
	}
	for _, bound := range fields[3:] {
		name, value, _ := strings.Cut(bound, "=")
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > mostInstances {
			return w, fmt.Errorf("%q is no bound from 0 to %d", bound, mostInstances)
		}
		switch {
		case name == "min" && w.Min == nil:
			w.Min = &n
		case name == "max" && w.Max == nil:
			w.Max = &n
		default:
			return w, fmt.Errorf("%q is no bound", bound)
		}
	}
	if w.Min != nil && w.Max != nil && *w.Min > *w.Max {
		return w, fmt.Errorf("min is above max")
	}
	return w, nil
}

// dayMinutes is the end of a day.
const dayMinutes = 24 * 60

var dayNames = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

func dayOf(name string) (int, error) {
	for i, n := range dayNames {
		if strings.EqualFold(n, name) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q is no day", name)
}

func parseDays(text string) (days [7]bool, err error) {
	if text == "*" {
		return [7]bool{true, true, true, true, true, true, true}, nil
	}
	for _, part := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := dayOf(first)
		if err != nil {
			return days, err
		}
		to, err := dayOf(last)
		if err != nil {
			return days, err
		}
		for d := from; ; d = (d + 1) % 7 {
			days[d] = true
			if d == to {
				break
			}
		}
	}
	return days, nil
}

func parseClock(text string) (minutes int, err error) {
	hours, rest, _ := strings.Cut(text, ":")
	h, errH := strconv.Atoi(hours)
	m, errM := strconv.Atoi(rest)
	minutes = h*60 + m
	if errH != nil || errM != nil || len(hours) > 2 || len(rest) != 2 || h < 0 || m < 0 || m > 59 || minutes > dayMinutes {
		return 0, fmt.Errorf("%q is no time of day", text)
	}
	return minutes, nil
}

// Holds reports whether the window is open at the moment, by what a clock on the wall of its zone shows: an hour that is
// left out in spring has nothing in it, one that comes twice in autumn has it twice.
func (w Window) Holds(at time.Time) bool {
	local := at.In(w.zone)
	minute, day := local.Hour()*60+local.Minute(), int(local.Weekday())
	if w.from < w.to {
		return w.days[day] && minute >= w.from && minute < w.to
	}
	return w.days[day] && minute >= w.from || w.days[(day+6)%7] && minute < w.to
}

// String is the window as it was written.
func (w Window) String() string { return w.text }
