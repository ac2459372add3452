package auth

// Roles.
const (
	RoleAdmin    = "admin"    // everything; a tenant's admin everything of the tenant
	RoleMember   = "member"   // works: jobs, endpoints and their keys
	RoleViewer   = "viewer"   // looks
	RoleNode     = "node"     // a device plugin: fetches, claims and reports intents
	RoleEndpoint = "endpoint" // a client of the gateway: uses models
)

// Verbs.
const (
	Read  = "read"
	Write = "write" // create, change, delete, stop
	Use   = "use"   // send requests to
)

// Objects.
const (
	Jobs         = "jobs" // with their decisions and reservations
	Pools        = "pools"
	Nodes        = "nodes"
	Intents      = "intents"
	Keys         = "keys"          // of any kind
	EndpointKeys = "endpoint_keys" // keys of kind endpoint
	Endpoints    = "endpoints"
	Usage        = "usage"
	Limits       = "limits" // of keys, members and tenants
	Audit        = "audit"  // who changed what
	Models       = "models"
	Settings     = "settings"
)

// anything stands for every object.
const anything = "*"

// rights says what each role may do. What is not here may not be done.
var rights = map[string]map[string][]string{
	RoleAdmin: {
		Read:  {anything},
		Write: {anything},
		Use:   {anything},
	},
	RoleMember: {
		Read:  {Jobs, Pools, Nodes, EndpointKeys, Endpoints, Usage, Limits, Models},
		Write: {Jobs, EndpointKeys, Endpoints},
		Use:   {Models},
	},
	RoleViewer: {
		Read: {Jobs, Pools, Nodes, Endpoints, Usage, Limits, Models},
	},
	RoleNode: {
		Read:  {Intents},
		Write: {Intents},
	},
	RoleEndpoint: {
		Read: {Models},
		Use:  {Models},
	},
}

// clusterWide are the objects that belong to no tenant.
var clusterWide = map[string]bool{Pools: true, Nodes: true, Intents: true, Settings: true}

// Can reports whether the role may do verb to object. Whose object it is, Identity.Can and the tenant parameter of
// the store decide. Unknown roles, verbs and objects may nothing.
func Can(role, verb, object string) bool {
	for _, o := range rights[role][verb] {
		if o == object || (o == anything && known[object]) {
			return true
		}
	}
	return false
}

var known = map[string]bool{
	Jobs: true, Pools: true, Nodes: true, Intents: true, Keys: true, EndpointKeys: true,
	Endpoints: true, Usage: true, Limits: true, Audit: true, Models: true, Settings: true,
}

// Can reports whether the caller may do verb to object. One who is bound to a tenant changes nothing that belongs
// to the whole cluster, and reads no intents and settings, whatever the role.
func (id Identity) Can(verb, object string) bool {
	if !Can(id.Role, verb, object) {
		return false
	}
	if id.Tenant == "" || id.Kind == KindNode || !clusterWide[object] {
		return true
	}
	return verb == Read && (object == Pools || object == Nodes)
}
