/** How Compute Engine names what a machine is made of. All of it becomes part of addresses there. */

const name = '[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?'
/** The id of a project, behind a colon where it is of an organization's domain, or its number. */
const project = String.raw`(?:(?:[a-z0-9.-]{1,255}:)?${name}|\d{1,20})`
const host = String.raw`(?:https://(?:www|compute)\.googleapis\.com/compute/(?:v1|beta|alpha)/)?`
const inProject = `(?:${host}projects/${project}/)?`

const of = (form: string): RegExp => new RegExp(`^${form}$`)

/** The form of each text, and an example of it. */
const gcpForms = {
  name: { form: of(name), example: 'a name such as e2-standard-2 or europe-west1' },
  project: { form: of(project), example: 'the id or the number of a project' },
  image: {
    form: of(`(?:${name}|${inProject}global/images/(?:family/)?${name})`),
    example: 'a name, or a path such as projects/debian-cloud/global/images/family/debian-12',
  },
  subnetwork: {
    form: of(`(?:${name}|${inProject}regions/${name}/subnetworks/${name})`),
    example: 'the name of a subnet, or a path such as regions/europe-west1/subnetworks/lab',
  },
} as const

/** Why a text cannot be what it is to name; undefined where it can. */
export const gcpNameProblem = (text: string, kind: keyof typeof gcpForms): string | undefined => {
  const { form, example } = gcpForms[kind]
  if (form.test(text)) return undefined
  return `${JSON.stringify(text.slice(0, 100).toWellFormed())} names nothing at Compute Engine; give ${example}`
}
