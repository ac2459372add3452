package constraint

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/api"
)

// Check compares the resolved sides of a node constraint. Found says whether the side has a value: a literal
// always has, a ${…} target only when the node has that attribute. The operands distinct_hosts and
// distinct_property are always true here, and an unknown operand is false.
func Check(operand, left, right string, leftFound, rightFound bool) bool {
	switch operand {
	case api.ConstraintDistinctHosts, api.ConstraintDistinctProperty:
		return true
	case "", "=", "==", "is":
		return leftFound && rightFound && left == right
	case "!=", "not":
		return leftFound != rightFound || left != right
	case api.ConstraintAttributeIsSet:
		return leftFound
	case api.ConstraintAttributeIsNotSet:
		return !leftFound
	}
	if !leftFound || !rightFound {
		return false
	}
	if ordered, known := order(operand); known {
		return ordered(compareText(left, right))
	}
	return checkText(operand, left, right)
}

// order gives the test of a comparison operand on the result of a compare function.
func order(operand string) (test func(int) bool, known bool) {
	switch operand {
	case "<":
		return func(c int) bool { return c < 0 }, true
	case "<=":
		return func(c int) bool { return c <= 0 }, true
	case ">":
		return func(c int) bool { return c > 0 }, true
	case ">=":
		return func(c int) bool { return c >= 0 }, true
	}
	return nil, false
}

// compareText compares as integers when both sides are, else as floats when both are, else as text.
func compareText(left, right string) int {
	if l, err := strconv.ParseInt(left, 10, 64); err == nil {
		if r, err := strconv.ParseInt(right, 10, 64); err == nil {
			return cmp.Compare(l, r)
		}
	}
	if l, err := strconv.ParseFloat(left, 64); err == nil {
		if r, err := strconv.ParseFloat(right, 64); err == nil {
			return cmp.Compare(l, r)
		}
	}
	return cmp.Compare(left, right)
}

// checkText applies the operands that work on text, on nodes and devices alike.
func checkText(operand, left, right string) bool {
	switch operand {
	case api.ConstraintRegex:
		re := pattern(right)
		return re != nil && re.MatchString(left)
	case api.ConstraintVersion:
		return versionFits(left, right)
	case api.ConstraintSemver:
		return semverFits(left, right)
	case api.ConstraintSetContains, api.ConstraintSetContainsAll:
		have := set(left)
		return !slices.ContainsFunc(set(right), func(want string) bool { return !slices.Contains(have, want) })
	case api.ConstraintSetContainsAny:
		have := set(left)
		return slices.ContainsFunc(set(right), func(want string) bool { return slices.Contains(have, want) })
	}
	return false
}

// set splits a comma separated list; blanks around the members do not count.
func set(list string) []string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// versionFits compares with pre-releases left out: 1.7.0-beta1 does not satisfy ">= 1.6".
func versionFits(left, right string) bool {
	have, err := version.NewVersion(left)
	if err != nil {
		return false
	}
	want, err := version.NewConstraint(right)
	return err == nil && want.Check(have)
}

// semverFits orders pre-releases as Semver 2.0 does: 1.7.0-beta1 satisfies ">= 1.6.0". The operator ~> is not part
// of it.
func semverFits(left, right string) bool {
	have, err := version.NewSemver(left)
	if err != nil {
		return false
	}
	for _, part := range set(right) {
		cut := strings.IndexFunc(part, func(r rune) bool { return !strings.ContainsRune("<>=! ", r) })
		if cut < 0 {
			return false
		}
		want, err := version.NewSemver(part[cut:])
		if err != nil || !semverCompare(strings.TrimSpace(part[:cut]), have.Compare(want)) {
			return false
		}
	}
	return true
}

func semverCompare(operator string, c int) bool {
	switch operator {
	case "", "=":
		return c == 0
	case "!=":
		return c != 0
	}
	test, known := order(operator)
	return known && test(c)
}

// patterns holds compiled expressions, since one constraint is checked against thousands of nodes. It is emptied
// when it grows past maxPatterns, so that jobs cannot fill the memory.
var patterns = struct {
	sync.Mutex
	compiled map[string]*regexp.Regexp
}{compiled: map[string]*regexp.Regexp{}}

const maxPatterns = 1024

// pattern compiles an expression once. It is nil for one that does not compile.
func pattern(expr string) *regexp.Regexp {
	patterns.Lock()
	defer patterns.Unlock()
	re, ok := patterns.compiled[expr]
	if !ok {
		if len(patterns.compiled) >= maxPatterns {
			clear(patterns.compiled)
		}
		re, _ = regexp.Compile(expr) // nil on error, which is what an expression that does not compile means here
		patterns.compiled[expr] = re
	}
	return re
}
