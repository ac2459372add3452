package submit

import "github.com/heteroflow/heteroflow/internal/grant"

// signed stands for a grant where people read a job's difference: the grant itself is long and tells them nothing.
const signed = "(signed by HeteroFlow)"

// hideGrants shortens the grants in the difference of a plan, in the config of each task. That one has changed can
// still be seen.
func hideGrants(diff any) {
	for _, group := range treesOf(diff, "TaskGroups") {
		for _, task := range treesOf(group, "Tasks") {
			for _, object := range treesOf(task, "Objects") {
				if object["Name"] != "Config" {
					continue
				}
				for _, field := range treesOf(object, "Fields") {
					hideGrant(field)
				}
			}
		}
	}
}

func hideGrant(field Tree) {
	if field["Name"] != "grant" {
		return
	}
	for _, side := range []string{"Old", "New"} {
		text, _ := field[side].(string)
		if grant.IsToken(text) {
			field[side] = signed
		}
	}
}

// treesOf are the objects of a list in a tree; none when there is no such list.
func treesOf(tree any, name string) []Tree {
	t, _ := tree.(Tree)
	list, _ := t[name].([]any)
	out := make([]Tree, 0, len(list))
	for _, v := range list {
		if one, ok := v.(Tree); ok {
			out = append(out, one)
		}
	}
	return out
}
