job "constraints" {
  constraint {
    attribute = "${attr.nomad.version}"
    version   = ">= 1.6"
  }
  constraint {
    attribute = "${attr.nomad.version}"
    semver    = ">= 1.6.0"
  }
  constraint {
    attribute    = "${meta.tags}"
    set_contains = "a,b"
  }
  constraint {
    attribute = "${node.unique.id}"
    operator  = "set_contains_any"
    value     = "n1,n2"
  }
  constraint {
    distinct_property = "${meta.rack}"
  }
  constraint {
    distinct_property = "${meta.rack}"
    value             = 3
  }
  constraint {
    distinct_hosts = true
  }
  constraint {
    attribute = "${meta.x}"
    operator  = "is_set"
  }
  affinity {
    attribute = "${node.class}"
    regexp    = "gpu.*"
    weight    = -30
  }
  affinity {
    attribute        = "${meta.tags}"
    set_contains_all = "a,b"
  }
  affinity {
    attribute        = "${meta.tags}"
    set_contains_any = "a,b"
  }
  group "g" {
    constraint {
      operator = "distinct_hosts"
      value    = "false"
    }
  }
}
