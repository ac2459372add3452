package heteroflow_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// pains are what users of other gateways, autoscalers and meters have suffered from, by the number of the row in the
// survey, and what must be so here. Each is a test whose name has the number.
var pains = map[string]string{
	"PW01": "round robin stays exact while the list of backends is refreshed",
	"PW02": "of sixteen replicas each gets its share",
	"PW03": "a replica that is not ready yet costs no client an error",
	"PW04": "a slow replica gets less",
	"PW05": "tokens are limited by key, and usage by key is exact",
	"PW07": "card time is the exact integral when the shape changes in the middle of an hour",
	"PW09": "streams without usage are metered all the same",
	"PW10": "an engine that refuses stream_options is served without them",
	"PW13": "no path goes round a budget, the tightest of all wins",
	"PW14": "a client that leaves stops the engine, what was given out is counted once",
	"PW15": "a session whose backend is gone goes elsewhere, no other moves",
	"PW16": "memory for prefixes is bounded, however many prompts differ",
	"PW18": "long streams are work: a service that has them is not made smaller than they need",
	"PW19": "scaling to zero and back loses no request",
	"PW20": "a service at zero wakes",
	"PW23": "bounds by the hours of a zone are right over the days on which its clocks are set",
	"PW24": "a burst beyond capacity waits in fair order, and is refused with Retry-After beyond that",
	"PW25": "an instance whose allocation is gone gets no traffic, whatever the registry lists",
}

// elsewhere are rows that are no test, and what holds them.
var elsewhere = map[string]string{
	"PW26": "make gateway-bench: requests a second and what is added to their time",
}

func TestPains_EachHasATest(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`PW\d\d`)
	test := regexp.MustCompile(`(?m)^func Test(\w+)\(`)
	found := map[string][]string{}
	for dir, files := range packages(t) {
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") || dir == "." {
				continue
			}
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range test.FindAllSubmatch(src, -1) {
				for _, id := range number.FindAllString(string(m[1]), -1) {
					found[id] = append(found[id], dir+".Test"+string(m[1]))
				}
			}
		}
	}
	for id, what := range pains {
		if len(found[id]) == 0 {
			t.Errorf("%s has no test: %s", id, what)
		}
	}
	for id, tests := range found {
		if pains[id] == "" {
			t.Errorf("%s is tested by %s and not listed here: say what must be so", id, strings.Join(tests, ", "))
		}
		if elsewhere[id] != "" {
			t.Errorf("%s has a test now: list it under pains", id)
		}
	}
}
