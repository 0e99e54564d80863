# SPDX-License-Identifier: Apache-2.0
"""The page's last part: the machine, the winner's place on it, the space, versions."""

from __future__ import annotations

from collections.abc import Sequence

from xlaunch.cli.machine_drawing import draw_machine
from xlaunch.environment.variables import Setting
from xlaunch.errors import XLaunchError
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.planning.plan import Plan
from xlaunch.planning.rendering import numactl_line, render_plan
from xtune.page.findings import Findings
from xtune.page.machine_picture import machine_picture
from xtune.page.markup import Child, Markup, element, join
from xtune.page.parts import Section, changed, code, facts, folded, paragraph, table
from xtune.screen.words import counted
from xtune.space.installed import PROGRAM, SYSTEM, TUNER, Installed, installed
from xtune.space.parameters import BARE, Parameter, Where

PLACES = {
    Where.OPTION: "option of xlaunch",
    Where.VARIABLE: "environment variable",
    Where.PROGRAM: "the program's own",
}

GROUPS = {
    TUNER: "The tuner",
    PROGRAM: "The program's environment",
    SYSTEM: "The system",
}


def machine_section(findings: Findings) -> Section:
    """What there is: packages, NUMA nodes, caches, cores, limits."""
    machine = findings.machine
    identity = findings.subject.machine
    rows = [*identity.facts, ("fingerprint", identity.fingerprint)]
    drawing = str(draw_machine(machine))
    body = join(
        machine_picture(machine, None),
        facts(rows),
        folded("Drawn as text, by xlaunch topology", code(drawing, "machine-drawing")),
        *[paragraph(f"Note: {note}", klass="note") for note in machine.notes],
    )
    return Section("machine", "The machine", body)


def plan_section(findings: Findings) -> Section:
    """Which instance is on which CPUs, and what it is started with."""
    shown = findings.shown
    if shown == BARE:
        told = (
            "The bare command runs as it is: on any CPU that it may use, wherever the kernel puts its"
            " threads, with the environment that it inherits."
        )
        return Section("plan", "Where it runs", paragraph(told))
    title = "Where the winner runs"
    if findings.verdict.best == BARE:
        title = "Where the best finalist would run"
    try:
        plan = findings.resolver.resolve(shown).plan
        settings = findings.resolver.environment(shown).settings
    except XLaunchError as error:
        told = f"It cannot be carried out on this machine as it is now: {error}"
        return Section("plan", title, paragraph(told))
    # The same for every instance, but for its number, place and files.
    body = join(
        paragraph(changed(shown, findings.space)),
        machine_picture(findings.machine, plan),
        table(
            ("instance", "CPUs", "cores", "threads", "NUMA nodes", "memory", "as numactl has it"),
            [_instance_row(plan, at) for at in range(len(plan.instances))],
            numbers=(2, 3),
        ),
        element("h3", "What it is started with"),
        _environment(settings[0]),
        folded("Drawn as text", code(str(draw_machine(findings.machine, plan)), "plan-drawing")),
        folded(
            "The plan in words, with its reasons",
            code(render_plan(plan, findings.machine, explain=True), "plan-words"),
        ),
    )
    return Section("plan", title, body)


def _instance_row(plan: Plan, at: int) -> tuple[Child, ...]:
    one = plan.instances[at]
    memory = one.memory.value
    if one.memory_nodes:
        memory += f" {format_cpu_list(one.memory_nodes)}"
    return (
        element("b", f"#{one.index}"),
        format_cpu_list(one.cpus) if plan.bound else "any that it may use",
        str(one.ncores),
        str(one.threads),
        format_cpu_list(one.nodes),
        memory,
        element("code", numactl_line(one, bound=plan.bound)),
    )


def _environment(settings: Sequence[Setting]) -> Markup:
    if not settings:
        return paragraph("No variable is set.")
    rows = [
        (
            element("code", one.name),
            element("code", one.value),
            f"{one.reason}{' (set already, and stays)' if one.users_own else ''}",
        )
        for one in settings
    ]
    return table(("variable", "value", "why"), rows, klass="environment")


def space_section(findings: Findings) -> Section:
    """Each parameter with its values and why it is searched."""
    space = findings.space
    seen = {launch.configuration for launch in findings.launches} - {BARE}
    rows = [
        (element("code", one.name), _values(one), PLACES[one.where], _reason(one))
        for one in space.parameters
    ]
    body = join(
        table(("setting", "values", "what it is", "why it was searched"), rows, klass="space"),
        *[
            paragraph("Only configurations for which ", element("code", one.text), " holds.")
            for one in space.conditions
        ],
    )
    lead = (
        f"{counted(space.size, 'configuration')}, of which {len(seen)} were launched. Defaults are"
        " underlined."
    )
    return Section("space", "What was searched", body, lead=lead)


def _values(parameter: Parameter) -> Markup:
    pieces = [
        element(
            "code",
            str(value),
            klass="piece default" if value == parameter.default else "piece",
            title="the default" if value == parameter.default else None,
        )
        for value in parameter.values
    ]
    return join(*pieces, between=" ")


def _reason(parameter: Parameter) -> str:
    warned = " It may change results." if parameter.changes_results else ""
    return f"{parameter.reason}{warned}".strip()


def versions_section(findings: Findings) -> Section:
    """What the latest launches were made with."""
    if findings.made:
        found: Installed = findings.made[-1].provenance.installed
        lead = "As they were when the latest launches were made."
    else:
        found = installed(findings.resolver.request(BARE))
        lead = "As they were when this page was made: those of the launches were not kept."
    study = (
        ("name", findings.study),
        ("begun in", element("code", findings.folder)),
        ("program", element("code", findings.subject.program.place)),
    )
    groups = [(title, tuple(found.get(group, {}).items())) for group, title in GROUPS.items()]
    columns = [
        element("div", element("h3", title), facts(rows))
        for title, rows in (*groups, ("The study", study))
        if rows
    ]
    body = element("div", join(*columns), klass="columns")
    return Section("versions", "Versions", body, lead=lead)
