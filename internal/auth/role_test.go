package auth_test

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
)

func TestCan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role, verb, object string
		want               bool
	}{
		"admin writes settings":          {auth.RoleAdmin, auth.Write, auth.Settings, true},
		"admin writes keys":              {auth.RoleAdmin, auth.Write, auth.Keys, true},
		"admin of an unknown thing":      {auth.RoleAdmin, auth.Write, "moon", false},
		"admin does an unknown thing":    {auth.RoleAdmin, "eat", auth.Jobs, false},
		"member writes jobs":             {auth.RoleMember, auth.Write, auth.Jobs, true},
		"member writes endpoint keys":    {auth.RoleMember, auth.Write, auth.EndpointKeys, true},
		"member writes keys of any kind": {auth.RoleMember, auth.Write, auth.Keys, false},
		"member writes intents":          {auth.RoleMember, auth.Write, auth.Intents, false},
		"viewer reads jobs":              {auth.RoleViewer, auth.Read, auth.Jobs, true},
		"viewer writes jobs":             {auth.RoleViewer, auth.Write, auth.Jobs, false},
		"viewer uses models":             {auth.RoleViewer, auth.Use, auth.Models, false},
		"node writes intents":            {auth.RoleNode, auth.Write, auth.Intents, true},
		"node reads jobs":                {auth.RoleNode, auth.Read, auth.Jobs, false},
		"endpoint uses models":           {auth.RoleEndpoint, auth.Use, auth.Models, true},
		"endpoint reads usage":           {auth.RoleEndpoint, auth.Read, auth.Usage, false},
		"nobody":                         {"", auth.Read, auth.Pools, false},
		"unknown role":                   {"root", auth.Read, auth.Pools, false},
	} {
		if got := auth.Can(c.role, c.verb, c.object); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestIdentity_CanOfATenantEndsAtTheCluster(t *testing.T) {
	t.Parallel()
	tenantAdmin := auth.Identity{Tenant: "research", Role: auth.RoleAdmin, Kind: auth.KindTenant}
	operator := auth.Identity{Role: auth.RoleAdmin, Kind: auth.KindAdmin}
	node := auth.Identity{Tenant: "infra", Role: auth.RoleNode, Kind: auth.KindNode}
	for name, c := range map[string]struct {
		id           auth.Identity
		verb, object string
		want         bool
	}{
		"tenant admin writes keys":     {tenantAdmin, auth.Write, auth.Keys, true},
		"tenant admin reads pools":     {tenantAdmin, auth.Read, auth.Pools, true},
		"tenant admin writes nodes":    {tenantAdmin, auth.Write, auth.Nodes, false},
		"tenant admin writes settings": {tenantAdmin, auth.Write, auth.Settings, false},
		"tenant admin reads settings":  {tenantAdmin, auth.Read, auth.Settings, false},
		"tenant admin reads intents":   {tenantAdmin, auth.Read, auth.Intents, false},
		"operator writes settings":     {operator, auth.Write, auth.Settings, true},
		"node of a tenant":             {node, auth.Write, auth.Intents, true},
		"nobody":                       {auth.Identity{}, auth.Read, auth.Pools, false},
	} {
		if got := c.id.Can(c.verb, c.object); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestIdentity_Opens(t *testing.T) {
	t.Parallel()
	e := store.Endpoint{ID: "e1", Tenant: "research"}
	for name, c := range map[string]struct {
		id   auth.Identity
		want bool
	}{
		"its endpoint":       {auth.Identity{Tenant: "research", Role: "endpoint", Endpoints: []string{"e0", "e1"}}, true},
		"all of the tenant":  {auth.Identity{Tenant: "research", Role: "endpoint"}, true},
		"another endpoint":   {auth.Identity{Tenant: "research", Role: "endpoint", Endpoints: []string{"e0"}}, false},
		"of another tenant":  {auth.Identity{Tenant: "ops", Role: "endpoint", Endpoints: []string{"e1"}}, false},
		"the operator":       {auth.Identity{Role: "admin"}, true},
		"a member":           {auth.Identity{Tenant: "research", Role: "member"}, true},
		"a viewer":           {auth.Identity{Tenant: "research", Role: "viewer"}, false},
		"nobody":             {auth.Identity{}, false},
		"a node's identity":  {auth.Identity{Role: "node"}, false},
		"member elsewhere":   {auth.Identity{Tenant: "ops", Role: "member"}, false},
		"admin of elsewhere": {auth.Identity{Tenant: "ops", Role: "admin"}, false},
	} {
		if got := c.id.Opens(e); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
