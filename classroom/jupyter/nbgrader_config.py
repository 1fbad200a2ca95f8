"""nbgrader on students' servers: which course it is, and where assignments are handed out and in."""

import os

from bttlab.teaching.course import COURSE

c = get_config()  # noqa: F821, nbgrader's

c.CourseDirectory.course_id = COURSE
c.Exchange.root = os.environ["BTTLAB_EXCHANGE"]
